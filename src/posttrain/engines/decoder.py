"""The forward pass of Llama-shaped models over rows of different lengths, without padding.

transformers' own forward pads, copies the whole cache at each token and launches a third more
operations. Here prompts are packed end to end, each row has a slot in one preallocated cache, and
query/key/value and gate/up projections are one product each. The parameters stay those of the
transformers model: its modules see views of the packed matrices, so loading weights goes its usual way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

_WIDTH_STEP = 32
_Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SUPPORTED = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


def supports(model: Any) -> bool:
    """Whether `Decoder` computes this model: full attention in every layer, and nothing unusual around it."""
    config = model.config
    windows = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    dynamic = getattr(model.model.rotary_emb, "rope_type", "") if hasattr(model, "model") else ""
    return (
        type(model).__name__ in SUPPORTED
        and windows is None
        and kinds == {"full_attention"}
        and dynamic not in ("dynamic", "longrope")
    )


@dataclass(frozen=True)
class Layer:
    """What one layer needs, gathered once."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: Any
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: Any
    activation: Any
    norm_in: Any
    norm_mid: Any
    norm_q: Any
    norm_k: Any


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the tokens that all prompts begin with: [layers, heads, tokens, dim]."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def length(self) -> int:
        return self.keys.shape[2]


class Slots:
    """Keys and values of up to `rows` sequences of up to `capacity` tokens, one slot a row.

    Keys lie transposed (dim before tokens): the product of a query with them then reads memory in order.
    """

    def __init__(self, decoder: Decoder, *, rows: int, capacity: int) -> None:
        layers, heads, dim = len(decoder.layers), decoder.kv_heads, decoder.head_dim
        kind = {"dtype": decoder.dtype, "device": decoder.device}
        self.capacity = _round_up(capacity)
        # zeros, because what a mask hides is still multiplied, and 0 times an old NaN is NaN
        self.keys = torch.zeros((layers, rows, heads, dim, self.capacity), **kind)
        self.values = torch.zeros((layers, rows, heads, self.capacity, dim), **kind)

    def preset(self, prefix: Prefix) -> None:
        """Put the shared beginning into every slot; prompts are then filled in behind it."""
        self.keys[..., : prefix.length] = prefix.keys.transpose(-1, -2)[:, None]
        self.values[..., : prefix.length, :] = prefix.values[:, None]

    def move(self, source: int, target: int, length: int) -> None:
        """Let slot `target` hold what slot `source` does."""
        self.keys[:, target, ..., :length] = self.keys[:, source, ..., :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]


class Decoder:
    """Prefill and single steps over the parameters of a transformers model."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._model = model
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.layers = [_layer(layer) for layer in model.model.layers]
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self._vocabulary: int = model.get_input_embeddings().num_embeddings

    def blank_marks(self, rows: int) -> torch.Tensor:
        """[rows, vocabulary], nothing marked."""
        return torch.zeros((rows, self._vocabulary), dtype=torch.bool, device=self.device)

    @property
    def norm_out(self) -> Any:
        """What the last layer's states go through."""
        return self._model.model.norm

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[tokens, size]."""
        return self._model.model.embed_tokens(tokens)

    def rotation(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [length, dim] of the first positions, by the base's own buffers."""
        positions = torch.arange(length, device=self.device)[None]
        like = torch.zeros((), dtype=self.dtype, device=self.device)
        cos, sin = self._model.model.rotary_emb(like, position_ids=positions)
        return cos[0].contiguous(), sin[0].contiguous()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, vocabulary]."""
        return self._model.lm_head(hidden)

    @property
    def bytes_of_logits(self) -> int:
        """Of one row, with what choosing from them takes."""
        return 2 * self._vocabulary * self.dtype.itemsize

    @property
    def bytes_per_token(self) -> int:
        """Of what one layer holds of a token at the time it holds most."""
        widths = (self.layers[0].gate_up.shape[0], self.layers[0].qkv.shape[0], self.layers[0].qkv.shape[1])
        return 2 * sum(widths) * self.dtype.itemsize

    def packed(self) -> bool:
        """Whether the modules' parameters are still the matrices that are computed with."""
        return all(
            layer.qkv.data_ptr() == module.self_attn.q_proj.weight.data_ptr()
            and layer.gate_up.data_ptr() == module.mlp.gate_proj.weight.data_ptr()
            for layer, module in zip(self.layers, self._model.model.layers, strict=True)
        )

    @property
    def head(self) -> int:
        """Where the head's matrix lies: a submission may have one of its own."""
        return int(self._model.lm_head.weight.data_ptr())

    def prefix(self, tokens: Sequence[int]) -> Prefix:
        """Keys and values of a beginning that several prompts share."""
        kept = _Packed(self, [tokens], None)
        self._run(kept.tokens, kept.positions, kept.attend)
        return Prefix(torch.stack(kept.keys), torch.stack(kept.values))

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        slots: Slots,
        places: Sequence[int],
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """Fill the slots `places` with `prompts`; logits [prompts, vocabulary] of the tokens that follow.

        All prompts begin with `prefix`, and the slots hold it already.
        """
        packed = _Packed(self, prompts, prefix, slots=slots, places=places)
        hidden = self._run(packed.tokens, packed.positions, packed.attend)
        return self.logits(hidden[packed.ends])

    def step(self, tokens: Sequence[int], lengths: Sequence[int], *, slots: Slots) -> torch.Tensor:
        """Logits [rows, vocabulary] after appending `tokens` to the slots 0 … rows - 1.

        `lengths` are the tokens that are there already.
        """
        stepped = _Stepped(self, lengths, slots)
        hidden = self._run(torch.tensor(tokens, device=self.device), stepped.positions, stepped.attend)
        return self.logits(hidden)

    def _run(self, tokens: torch.Tensor, positions: torch.Tensor, attend: _Attend) -> torch.Tensor:
        """Hidden states [tokens, size] after the last layer's norm."""
        inner = self._model.model
        hidden = inner.embed_tokens(tokens)
        turn = _Turn.of(inner.rotary_emb, hidden, positions)
        for number, layer in enumerate(self.layers):
            hidden = hidden + self._attention(number, layer.norm_in(hidden), turn, attend)
            hidden = hidden + self._feed_forward(layer, layer.norm_mid(hidden))
        return inner.norm(hidden)

    def _attention(self, number: int, hidden: torch.Tensor, turn: _Turn, attend: _Attend) -> torch.Tensor:
        layer, count = self.layers[number], hidden.shape[0]
        mixed = functional.linear(hidden, layer.qkv, layer.qkv_bias)
        mixed = mixed.view(count, self.heads + 2 * self.kv_heads, self.head_dim)
        turning, value = mixed.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        if layer.norm_q is not None:
            query, key = turning.split([self.heads, self.kv_heads], dim=1)
            turning = torch.cat((layer.norm_q(query), layer.norm_k(key)), dim=1)
        query, key = turn(turning).split([self.heads, self.kv_heads], dim=1)
        return layer.out(attend(number, query, key, value).reshape(count, -1))

    def _feed_forward(self, layer: Layer, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = functional.linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return layer.down(layer.activation(gate) * up)


class _Packed:
    """Prompts laid end to end, each attending to itself and to what all of them begin with."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        prefix: Prefix | None,
        *,
        slots: Slots | None = None,
        places: Sequence[int] = (),
    ) -> None:
        self._decoder, self._prefix, self._slots, self._places = decoder, prefix, slots, places
        self._shared = 0 if prefix is None else prefix.length
        self._lengths = [len(prompt) - self._shared for prompt in prompts]
        device = decoder.device
        self.tokens = torch.tensor([t for prompt in prompts for t in prompt[self._shared :]], device=device)
        spans = [torch.arange(self._shared, self._shared + length, device=device) for length in self._lengths]
        self.positions = torch.cat(spans)
        self.ends = torch.tensor(self._lengths, device=device).cumsum(0) - 1
        """Place of each prompt's last token."""
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        """Of each layer, kept only where there are no slots."""

    def attend(
        self, number: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        parts = (tensor.transpose(0, 1).split(self._lengths, dim=1) for tensor in (query, key, value))
        pieces = list(zip(*parts, strict=True))
        if self._slots is None:
            self.keys.append(pieces[0][1])
            self.values.append(pieces[0][2])
        else:
            for place, (_, keys, values) in zip(self._places, pieces, strict=True):
                span = slice(self._shared, self._shared + keys.shape[1])
                self._slots.keys[number, place, :, :, span] = keys.transpose(1, 2)
                self._slots.values[number, place, :, span] = values
        return torch.cat([self._one(number, *piece) for piece in pieces])

    def _one(
        self, number: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """[tokens, heads, dim] of one prompt."""
        mask = None
        if self._prefix is not None:
            keys = torch.cat((self._prefix.keys[number], keys), dim=1)
            values = torch.cat((self._prefix.values[number], values), dim=1)
            mask = torch.ones(query.shape[1], keys.shape[1], dtype=torch.bool, device=keys.device)
            mask = mask.tril(self._shared)
        group = query.shape[0] // keys.shape[0]
        result = functional.scaled_dot_product_attention(
            query[None],
            keys.repeat_interleave(group, dim=0)[None],
            values.repeat_interleave(group, dim=0)[None],
            attn_mask=mask,
            is_causal=mask is None,
        )
        return result[0].transpose(0, 1)


class _Stepped:
    """One new token in each slot. Heads that share keys stand as several queries of one head."""

    def __init__(self, decoder: Decoder, lengths: Sequence[int], slots: Slots) -> None:
        self._decoder, self._slots = decoder, slots
        device = decoder.device
        self.positions = torch.tensor(lengths, device=device)
        self._rows = torch.arange(len(lengths), device=device)
        self._width = min(_round_up(max(lengths) + 1), slots.capacity)
        hidden = torch.arange(self._width, device=device) > self.positions[:, None]
        bias = torch.zeros(hidden.shape, dtype=decoder.dtype, device=device)
        self._bias = bias.masked_fill_(hidden, float("-inf")).repeat_interleave(decoder.kv_heads, 0)[:, None]
        self._scale = decoder.head_dim**-0.5

    def attend(
        self, number: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        count, heads, dim = key.shape
        keys, values = self._slots.keys[number], self._slots.values[number]
        keys[self._rows, :, :, self.positions] = key
        values[self._rows, :, self.positions] = value
        keys, values = keys[:count, ..., : self._width], values[:count, :, : self._width]
        scores = torch.baddbmm(
            self._bias, query.reshape(count * heads, -1, dim), keys.flatten(0, 1), alpha=self._scale
        )
        return torch.bmm(scores.softmax(dim=-1), values.flatten(0, 1)).view(count, -1, dim)


def _round_up(width: int) -> int:
    """Widths step, because the kernels of a new width must be made first."""
    return -(-width // _WIDTH_STEP) * _WIDTH_STEP


@dataclass(frozen=True)
class _Turn:
    """Rotary embedding at the positions of one pass."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, rotary: Any, hidden: torch.Tensor, positions: torch.Tensor) -> _Turn:
        cos, sin = rotary(hidden[None], position_ids=positions[None])
        return cls(cos[0, :, None], sin[0, :, None])

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, dim] turned."""
        half = states.shape[-1] // 2
        turned = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
        return states * self.cos + turned * self.sin


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias = _pack([attention.q_proj, attention.k_proj, attention.v_proj])
    gate_up, gate_up_bias = _pack([mlp.gate_proj, mlp.up_proj])
    return Layer(
        qkv=qkv,
        qkv_bias=qkv_bias,
        out=attention.o_proj,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=mlp.down_proj,
        activation=mlp.act_fn,
        norm_in=layer.input_layernorm,
        norm_mid=layer.post_attention_layernorm,
        norm_q=getattr(attention, "q_norm", None),
        norm_k=getattr(attention, "k_norm", None),
    )


def _pack(linears: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One matrix for several projections of the same input; the modules keep views of it as parameters."""
    weight = _pack_parameters(linears, "weight")
    bias = _pack_parameters(linears, "bias") if linears[0].bias is not None else None
    return weight, bias


def _pack_parameters(linears: Sequence[Any], name: str) -> torch.Tensor:
    whole = torch.cat([getattr(linear, name).detach() for linear in linears])
    for linear, piece in zip(linears, whole.split([linear.out_features for linear in linears]), strict=True):
        getattr(linear, name).data = piece
    return whole
