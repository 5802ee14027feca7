"""The forward pass of Llama-shaped models over fixed memory, so that a step can be recorded and replayed.

On a GPU a small model's step is some hundred launches of a few microseconds each: the processor cannot
issue them fast enough. A CUDA graph replays them as one. It needs every address and every size fixed, so
rows have slots in one arena, lengths and tokens are numbers on the device, and there is one graph for
each number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from posttrain.engines.decoder import Decoder
from posttrain.engines.static_ops import Ops

_ROUND = 64
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Not cuDNN's: it plans anew for every new shape, half a second each."""


class Arena:
    """Keys and values of `rows` sequences of up to `capacity` tokens, and where each of them stands."""

    def __init__(self, decoder: Decoder, *, rows: int, capacity: int) -> None:
        self.rows, self.capacity = rows, round_up(capacity)
        shape = (len(decoder.layers), rows, decoder.kv_heads, self.capacity, decoder.head_dim)
        kind = {"dtype": decoder.dtype, "device": decoder.device}
        # zeros, because what a mask hides may still be multiplied, and 0 times an old NaN is NaN
        self.keys, self.values = torch.zeros(shape, **kind), torch.zeros(shape, **kind)
        self.tokens = torch.zeros(rows, dtype=torch.long, device=decoder.device)
        """The newest token of each row."""
        self.positions = torch.zeros(rows, dtype=torch.int32, device=decoder.device)
        """Where that token goes: how many the row holds before it."""
        self.numbers = torch.arange(rows, dtype=torch.int32, device=decoder.device)

    def clear(self) -> None:
        """As new."""
        for tensor in (self.keys, self.values, self.tokens, self.positions):
            tensor.zero_()

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Let each target row hold what its source does; no row is both."""
        source = torch.tensor(sources, device=self.tokens.device)
        target = torch.tensor(targets, device=self.tokens.device)
        for layer in range(len(self.keys)):
            self.keys[layer, target] = self.keys[layer, source]
            self.values[layer, target] = self.values[layer, source]
        self.tokens[target] = self.tokens[source]
        self.positions[target] = self.positions[source]


def arena_bytes(decoder: Decoder, *, rows: int, capacity: int) -> int:
    """What an arena takes of the device's memory, nearly all of it keys and values."""
    size = torch.finfo(decoder.dtype).bits // 8
    per_token = 2 * len(decoder.layers) * decoder.kv_heads * decoder.head_dim * size
    return rows * round_up(capacity) * per_token


def round_up(length: int) -> int:
    return -(-length // _ROUND) * _ROUND


class StaticDecoder:
    """Prefill, and steps over the first rows of one arena; on a CUDA device steps are graphs."""

    def __init__(
        self, decoder: Decoder, arena: Arena, ops: Ops, choose: Callable[[torch.Tensor], Any] | None
    ):
        """`choose` picks tokens from logits inside of a step. None: `step` leaves `logits` for the caller."""
        self.arena = arena
        self._decoder, self._ops, self._choose = decoder, ops, choose
        self._cos, self._sin = decoder.rotation(arena.capacity)
        self._graphs: dict[int, Any] = {}
        self._pool: Any = None
        self.logits: dict[int, torch.Tensor] = {}
        """Of the last step, by number of rows."""

    def prefill(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> torch.Tensor:
        """Fill `rows` with prompts; logits [prompts, vocabulary] of what follows. Rows stand behind them."""
        device, width = self._decoder.device, max(len(prompt) for prompt in prompts)
        padded = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        places = torch.tensor(rows, dtype=torch.int32, device=device)
        # what stands behind a shorter prompt is never looked at: later tokens overwrite it first
        positions = torch.arange(width, dtype=torch.int32, device=device).repeat(len(prompts))
        hidden = self._run(
            padded.flatten(), places.repeat_interleave(width), positions, self._causal(len(prompts), width)
        )
        ends = torch.arange(len(prompts), device=device) * width + lengths - 1
        self.arena.positions[places.long()] = lengths.to(torch.int32)
        return self._decoder.logits(hidden[ends])

    def step(self, rows: int) -> None:
        """One token more for the first `rows` rows."""
        if self._decoder.device.type != "cuda":
            self._advance(rows)
            return
        if rows not in self._graphs:
            self._graphs[rows] = self._record(rows)
        self._graphs[rows].replay()

    def _advance(self, rows: int) -> None:
        arena = self.arena
        tokens, positions = arena.tokens[:rows], arena.positions[:rows]
        hidden = self._run(tokens, arena.numbers[:rows], positions, self._stepwise(positions))
        logits = self._decoder.logits(hidden)
        if self._choose is None:
            self.logits[rows] = logits
        else:
            tokens.copy_(self._choose(logits))
        # a row that is over goes on until somebody looks; it must stay inside
        positions.add_(1).clamp_(max=arena.capacity - 1)

    def _record(self, rows: int) -> Any:
        """The graph of a step. Before it is recorded the step runs once, which changes nothing that stays."""
        arena = self.arena
        before = arena.tokens.clone(), arena.positions.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._advance(rows)
        torch.cuda.current_stream().wait_stream(stream)
        arena.tokens.copy_(before[0])
        arena.positions.copy_(before[1])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._advance(rows)
        self._pool = self._pool or graph.pool()
        return graph

    def _run(
        self,
        tokens: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        attend: Callable[[int, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        decoder, ops, arena = self._decoder, self._ops, self.arena
        hidden, delta = decoder.embed(tokens), None
        for number, layer in enumerate(decoder.layers):
            hidden, normed = ops.add_norm(hidden, delta, layer.norm_in)
            mixed = functional.linear(normed, layer.qkv, layer.qkv_bias)
            mixed = mixed.view(len(tokens), -1, decoder.head_dim)
            ops.turn(
                mixed,
                layer,
                cos=self._cos,
                sin=self._sin,
                keys=arena.keys[number],
                values=arena.values[number],
                rows=rows,
                positions=positions,
            )
            delta = layer.out(attend(number, mixed))
            hidden, normed = ops.add_norm(hidden, delta, layer.norm_mid)
            delta = layer.down(ops.gate(functional.linear(normed, layer.gate_up, layer.gate_up_bias), layer))
        return ops.add_norm(hidden, delta, decoder.norm_out)[1]

    def _stepwise(self, positions: torch.Tensor) -> Callable[[int, torch.Tensor], torch.Tensor]:
        arena = self.arena
        return lambda number, mixed: self._ops.attend(
            mixed, arena.keys[number], arena.values[number], positions
        )

    def _causal(self, prompts: int, width: int) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """Attention among the tokens of each prompt; they stand at the left, so no mask is needed."""
        heads, kv, dim = self._decoder.heads, self._decoder.kv_heads, self._decoder.head_dim

        def attend(_number: int, mixed: torch.Tensor) -> torch.Tensor:
            parts = mixed.view(prompts, width, -1, dim).transpose(1, 2).split([heads, kv, kv], dim=1)
            query, key, value = parts
            with sdpa_kernel(_KERNELS):
                result = functional.scaled_dot_product_attention(
                    query,
                    key.repeat_interleave(heads // kv, dim=1),
                    value.repeat_interleave(heads // kv, dim=1),
                    is_causal=True,
                )
            return result.transpose(1, 2).reshape(prompts * width, heads * dim)

        return attend
