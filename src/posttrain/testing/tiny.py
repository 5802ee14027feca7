"""A tiny real model, written with the standard library alone: llama shape, byte tokenizer, ChatML.

transformers reads it as any other checkpoint; nothing here needs torch, so the grading road can be
tested with it wherever the core is installed.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Dtype = Literal["BF16", "F16", "F32"]

HIDDEN = 96
HEADS, KV_HEADS, HEAD_SIZE = 6, 2, 16
MIDDLE = 192
LAYERS = 2
_DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIALS)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Tensor:
    """Values of one tensor, row by row."""

    shape: tuple[int, ...]
    values: Sequence[float]


def tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    dtype: Dtype = "BF16",
    tied: bool = True,
    shards: int = 1,
    chat_template: bool = True,
) -> Path:
    """Write a random model of some 0.2 million parameters into `folder`; the same for the same arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_config(folder, dtype=dtype, tied=tied)
    _write_tokenizer(folder, chat_template=chat_template)
    write_weights(folder, _random_tensors(seed, tied=tied), dtype=dtype, shards=shards)
    return folder


def fine_tuned(
    base: Path,
    target: Path,
    *,
    seed: int = 1,
    scale: float = 0.02,
    dtype: Dtype = "BF16",
    shards: int = 1,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A copy of a tiny model as a trainer would save it: noise on every tensor, other dtype, more files.

    `scale` 0 gives an exact copy of the values; `files` are text files to write beside the weights.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(base.iterdir()):
        if path.is_file() and "safetensors" not in path.name and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)
    source = random.Random(seed)  # noqa: S311
    tensors = {
        name: Tensor(tensor.shape, [value + source.gauss(0.0, scale) for value in tensor.values])
        for name, tensor in read_weights(base).items()
    }
    write_weights(target, tensors, dtype=dtype, shards=shards)
    config = json.loads((target / "config.json").read_text("utf-8"))
    (target / "config.json").write_text(
        json.dumps({**config, "dtype": _DTYPE_NAMES[dtype]}, indent=2), "utf-8"
    )
    for name, text in (files or {}).items():
        (target / name).write_text(text, "utf-8")
    return target


def write_weights(folder: Path, tensors: Mapping[str, Tensor], *, dtype: Dtype, shards: int = 1) -> None:
    """Write `model.safetensors`, or that many shards with their index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype=dtype)
        return
    names = sorted(tensors)
    placed = {name: f"model-{1 + i % shards:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(placed.values())):
        part = {name: tensors[name] for name in names if placed[name] == file}
        write_safetensors(folder / file, part, dtype=dtype)
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], *, dtype: Dtype) -> None:
    """One safetensors file."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blocks = []
    start = 0
    for name, tensor in tensors.items():
        raw = _pack(tensor.values, dtype)
        blocks.append(raw)
        entries[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, start + len(raw)],
        }
        start += len(raw)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(blocks))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        data = raw[8 + length :]
        entries = json.loads(raw[8 : 8 + length])
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            start, end = entry["data_offsets"]
            values = _unpack(data[start:end], entry["dtype"])
            tensors[name] = Tensor(tuple(entry["shape"]), values)
    return tensors


def _pack(values: Sequence[float], dtype: Dtype) -> bytes:
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    single = struct.pack(f"<{len(values)}f", *values)
    if dtype == "F32":
        return single
    halves = bytearray(len(single) // 2)
    halves[0::2], halves[1::2] = single[2::4], single[3::4]
    return bytes(halves)


def _unpack(raw: bytes, dtype: Dtype) -> Sequence[float]:
    if dtype == "F16":
        return struct.unpack(f"<{len(raw) // 2}e", raw)
    if dtype == "BF16":
        single = bytearray(2 * len(raw))
        single[2::4], single[3::4] = raw[0::2], raw[1::2]
        raw = bytes(single)
    return array("f", struct.unpack(f"<{len(raw) // 4}f", raw))


def _random_tensors(seed: int, *, tied: bool) -> dict[str, Tensor]:
    source = random.Random(seed)  # noqa: S311

    def matrix(rows: int, columns: int) -> Tensor:
        return Tensor((rows, columns), [source.gauss(0.0, 0.05) for _ in range(rows * columns)])

    ones = Tensor((HIDDEN,), [1.0] * HIDDEN)
    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": ones,
            f"{prefix}self_attn.q_proj.weight": matrix(HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_SIZE),
            f"{prefix}post_attention_layernorm.weight": ones,
            f"{prefix}mlp.gate_proj.weight": matrix(MIDDLE, HIDDEN),
            f"{prefix}mlp.up_proj.weight": matrix(MIDDLE, HIDDEN),
            f"{prefix}mlp.down_proj.weight": matrix(HIDDEN, MIDDLE),
        }
    tensors["model.norm.weight"] = ones
    if not tied:
        tensors["lm_head.weight"] = matrix(VOCABULARY, HIDDEN)
    return tensors


def _write_config(folder: Path, *, dtype: Dtype, tied: bool) -> None:
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": _DTYPE_NAMES[dtype],
        "hidden_size": HIDDEN,
        "intermediate_size": MIDDLE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "vocab_size": VOCABULARY,
        **ends,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2), "utf-8")


def _write_tokenizer(folder: Path, *, chat_template: bool) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {token: number for number, token in enumerate((*SPECIALS, *byte_letters()))}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(SPECIALS)],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "pad_token": SPECIALS[2],
        "unk_token": SPECIALS[0],
        "model_max_length": 512,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), "utf-8")
    if chat_template:
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")


def byte_letters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte, in GPT-2's order."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]
