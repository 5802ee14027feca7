"""Packages that carry a tiny model: a GGUF as llama.cpp would write it, and wheels around files."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.testing import tiny
from posttrain.testing.tiny import Tensor

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_MERGED = "th"
"""One merge, because the format knows no empty list; its token stands after the bytes."""


def tiny_gguf(path: Path, model: Path, *, pre: str = "smollm") -> str:
    """Write the tied tiny model of a folder as one unquantised GGUF; its sha256. Needs the extra `train`."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    _add_shape(writer)
    _add_tokenizer(writer, pre)
    for name, tensor in tiny.read_weights(model).items():
        writer.add_tensor(_gguf_name(name), _gguf_values(name, tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """A pure wheel that pip accepts, holding `files` inside the package's own folder."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in files.items():
            archive.writestr(f"{module}/{member}", content)
        for member, text in texts.items():
            archive.writestr(member, text)
    return path


def _add_shape(writer: Any) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(tiny.HIDDEN)
    writer.add_block_count(tiny.LAYERS)
    writer.add_feed_forward_length(tiny.MIDDLE)
    writer.add_head_count(tiny.HEADS)
    writer.add_head_count_kv(tiny.KV_HEADS)
    writer.add_rope_dimension_count(tiny.HEAD_SIZE)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(tiny.VOCABULARY + 1)


def _add_tokenizer(writer: Any, pre: str) -> None:
    normal, control = 1, 3
    special = len(tiny.SPECIALS)
    tokens = [*tiny.SPECIALS, *tiny.byte_letters(), _MERGED]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([control] * special + [normal] * (len(tokens) - special))
    writer.add_token_merges([" ".join(_MERGED)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny.CHAT_TEMPLATE)


def _gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return _NAMES[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_NAMES[rest]}"


def _gguf_values(name: str, tensor: Tensor) -> Any:
    """The values as an array; queries and keys in llama.cpp's order of rotary halves."""
    import numpy

    values = numpy.array(tensor.values, dtype=numpy.float32).reshape(tensor.shape)
    if name == "model.embed_tokens.weight":
        return numpy.concatenate([values, values[:1]])
    heads = {"q_proj": tiny.HEADS, "k_proj": tiny.KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1])
    return halves.swapaxes(1, 2).reshape(values.shape)
