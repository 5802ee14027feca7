"""Checkpoints as users of such tools met them, each made from a healthy fine-tune; what must become of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

Make = Callable[[Path, Path], None]
"""Changes the copy of the healthy folder at the first path; the second is the base."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Variant:
    name: str
    make: Make
    verdict: Literal["graded", "rejected", "unloadable"] = "graded"
    repaired: bool = False
    """Whether the grader lists a repair."""
    code: str | None = None
    """What the doctor must find."""
    mends: bool = True
    """Whether the doctor's copy has no fault left."""
    same: bool = True
    """Whether it writes what the healthy checkpoint writes."""


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / SINGLE)


def save(folder: Path, values: dict[str, torch.Tensor], *, metadata: dict[str, str] | None = None) -> None:
    owned = {name: value.contiguous().clone() for name, value in values.items()}
    save_file(owned, folder / SINGLE, metadata={"format": "pt"} if metadata is None else metadata)


def renamed(rule: Callable[[str], str]) -> Make:
    return lambda folder, _: save(folder, {rule(name): value for name, value in tensors(folder).items()})


def changed(change: Callable[[dict[str, torch.Tensor]], Any]) -> Make:
    def make(folder: Path, _: Path) -> None:
        values = tensors(folder)
        change(values)
        save(folder, values)

    return make


def cast(dtype: torch.dtype) -> Make:
    def make(folder: Path, _: Path) -> None:
        save(folder, {name: value.to(dtype) for name, value in tensors(folder).items()})

    return make


def edited(name: str, drop: tuple[str, ...] = (), **fields: Any) -> Make:
    def make(folder: Path, _: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        kept = {key: told for key, told in value.items() if key not in drop}
        path.write_text(json.dumps({**kept, **fields}, ensure_ascii=False), "utf-8")

    return make


def without(*names: str) -> Make:
    def make(folder: Path, _: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return make


def with_file(name: str, content: bytes = b"x") -> Make:
    def make(folder: Path, _: Path) -> None:
        (folder / name).write_bytes(content)

    return make


def both(*makes: Make) -> Make:
    def make(folder: Path, base: Path) -> None:
        for one in makes:
            one(folder, base)

    return make


def sharded(fault: str | None = None) -> Make:
    def make(folder: Path, _: Path) -> None:
        values = tensors(folder)
        names = sorted(values)
        files = [f"model-{k + 1:05}-of-00002.safetensors" for k in range(2)]
        placed = {name: files[k % 2] for k, name in enumerate(names)}
        for file in files:
            part = {name: values[name] for name in names if placed[name] == file}
            save_file(part, folder / file, metadata={"format": "pt"})
        (folder / SINGLE).unlink()
        if fault == "ghost":
            placed[HEAD] = files[0]
        if fault == "elsewhere":
            placed[names[0]], placed[names[1]] = placed[names[1]], placed[names[0]]
        if fault == "forgot":
            del placed[names[-1]]
        if fault != "no index":
            (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
        if fault == "lost":
            (folder / files[1]).unlink()

    return make


def _cut(folder: Path, _: Path) -> None:
    path = folder / SINGLE
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)


def _zeroed(values: dict[str, torch.Tensor]) -> None:
    for name in sorted(values)[-4:]:
        values[name] = torch.zeros_like(values[name])


def _bad(number: float) -> Make:
    def change(values: dict[str, torch.Tensor]) -> None:
        values["model.norm.weight"][3] = number

    return changed(change)


def _padded(values: dict[str, torch.Tensor]) -> None:
    embedding = values[EMBEDDING]
    values[EMBEDDING] = torch.cat([embedding, torch.full_like(embedding[:40], 0.02)])


def _copy_of_base(folder: Path, base: Path) -> None:
    (folder / SINGLE).unlink()
    shutil.copyfile(base / SINGLE, folder / SINGLE)


def _other_name(folder: Path, _: Path) -> None:
    (folder / SINGLE).rename(folder / "weights.safetensors")


def _deeper(folder: Path, _: Path) -> None:
    files = list(folder.iterdir())
    (folder / "checkpoint-20").mkdir()
    for path in files:
        path.rename(folder / "checkpoint-20" / path.name)


def _template_inside(folder: Path, _: Path) -> None:
    template = (folder / "chat_template.jinja").read_text("utf-8")
    edited("tokenizer_config.json", chat_template=template)(folder, folder)
    (folder / "chat_template.jinja").unlink()


def _few_shot_template(folder: Path, _: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text("Example: not True is False\n" + path.read_text("utf-8"), "utf-8")


def _truncating(folder: Path, _: Path) -> None:
    rule = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    edited("tokenizer.json", truncation=rule)(folder, folder)


def _swapped_ids(folder: Path, _: Path) -> None:
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text("utf-8"))
    vocabulary = value["model"]["vocab"]
    one, two = [token for token in vocabulary if token.isalpha() and token.isascii()][:2]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def _only_head(values: dict[str, torch.Tensor]) -> None:
    values[HEAD] = values.pop(EMBEDDING)


def _own_head(values: dict[str, torch.Tensor]) -> None:
    values[HEAD] = values[EMBEDDING] * 1.25


def _value_head(values: dict[str, torch.Tensor]) -> None:
    values["v_head.summary.weight"] = torch.ones(1, values[EMBEDDING].shape[1])
    values["v_head.summary.bias"] = torch.zeros(1)


def _old_buffers(values: dict[str, torch.Tensor]) -> None:
    values["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.full((8,), 9.0)


def _lora(values: dict[str, torch.Tensor]) -> None:
    values["model.layers.0.self_attn.q_proj.lora_A.weight"] = torch.zeros(2, 2)


def _peft_name(name: str) -> str:
    name = name.replace("q_proj.weight", "q_proj.base_layer.weight")
    return f"base_model.model.{name}"


CONFIG, GENERATION, SETTINGS = "config.json", "generation_config.json", "tokenizer_config.json"
_SAMPLING = {"do_sample": True, "temperature": 1.7, "top_p": 0.3, "repetition_penalty": 1.4}
_LFS = b"version https://git-lfs.github.com/spec/v1\n"
_STALE = b'{"weight_map": {"a": "old.safetensors"}}'


def _repaired(name: str, make: Make, code: str = "tensors", *, same: bool = True) -> Variant:
    return Variant(name, make, repaired=True, code=code, same=same)


def _unloadable(name: str, make: Make, code: str = "weights") -> Variant:
    return Variant(name, make, "unloadable", code=code, mends=False)


def _rejected(name: str, make: Make) -> Variant:
    return Variant(name, make, "rejected", code="weights", mends=False)


_NAMES = (
    _repaired("data-parallel prefix", renamed(lambda n: f"module.{n}")),
    _repaired("compiled prefix", renamed(lambda n: f"_orig_mod.{n}")),
    _repaired("peft prefix and base layers", renamed(_peft_name)),
    _repaired("inner model saved", renamed(lambda n: n.removeprefix("model."))),
    _repaired("multimodal prefix", renamed(lambda n: f"language_model.{n}")),
    _repaired("value head of PPO", changed(_value_head)),
    Variant("buffers of old versions", changed(_old_buffers)),
    _repaired("redundant tied head", changed(lambda v: v.update({HEAD: v[EMBEDDING]})), "tensors.head"),
    Variant("no head, config says untied", edited(CONFIG, tie_word_embeddings=False), code="config.tied"),
    _repaired("only the head of two tied", changed(_only_head)),
    _repaired("tied in config, another head in file", changed(_own_head), "tensors.head", same=False),
    _repaired("padded vocabulary", both(changed(_padded), edited(CONFIG, vocab_size=-1))),
    Variant("vocab_size off", edited(CONFIG, vocab_size=77), code="config.vocab_size"),
)
_FILES = (
    Variant("sharded", sharded()),
    _repaired("shards without index", sharded("no index")),
    _repaired("index names a tensor that is not there", sharded("ghost")),
    _repaired("index looks into the wrong files", sharded("elsewhere")),
    _repaired("index forgets a tensor", sharded("forgot")),
    Variant("stale index", with_file(INDEX, _STALE), code="index.stale"),
    _repaired("another file name", _other_name),
    _unloadable("missing shard", sharded("lost")),
    _unloadable("half-written file", _cut),
    Variant("half-written zeros", changed(_zeroed), code="values.zero", same=False),
    _unloadable("git-lfs pointer", with_file(SINGLE, _LFS)),
    _unloadable("one level too deep", _deeper),
    Variant("no format metadata", lambda f, _: save(f, tensors(f), metadata={}), code="tensors.format"),
    Variant(
        "leftovers of training",
        both(with_file("optimizer.pt"), with_file("training_args.bin")),
        code="files.leftover",
    ),
)
_ADAPTER = both(with_file("adapter_config.json", b"{}"), with_file("adapter_model.safetensors"))
_FORMS = (
    _rejected("adapter only", both(without(SINGLE), _ADAPTER)),
    Variant("adapter beside whole weights", _ADAPTER, code="files.adapter"),
    _rejected("adapter matrices inside", changed(_lora)),
    _rejected("pickle only", both(without(SINGLE), with_file("pytorch_model.bin"))),
    _unloadable("quantised", changed(lambda v: v.update({f"{EMBEDDING}.absmax": torch.ones(4)}))),
    _unloadable("empty tensors of ZeRO-3", changed(lambda v: v.update({EMBEDDING: torch.zeros(0)}))),
    _unloadable("a tensor missing", changed(lambda v: v.pop("model.norm.weight"))),
    _unloadable("NaN", _bad(float("nan")), "values.finite"),
    _unloadable("Inf", _bad(float("inf")), "values.finite"),
    Variant("float32", cast(torch.float32), code="tensors.dtype"),
    Variant("merge without effect", _copy_of_base, code="values.unchanged", same=False),
)
_CONFIGS = (
    Variant("no config", without(CONFIG), code="config"),
    Variant("config is no JSON", with_file(CONFIG, b"{"), code="config"),
    Variant(
        "rotary base lost", edited(CONFIG, drop=("rope_parameters",), rope_theta=123456.0), code="config.rope"
    ),
    Variant("rotary bases contradict", edited(CONFIG, rope_theta=5.0), code="config.rope"),
    Variant(
        "class of another head",
        edited(CONFIG, architectures=["LlamaForSequenceClassification"]),
        code="config.architectures",
    ),
    Variant("custom code", edited(CONFIG, auto_map={"AutoModel": "evil.Evil"}), code="config.auto_map"),
    Variant(
        "quantization_config left over",
        edited(CONFIG, quantization_config={"quant_method": "gptq", "bits": 4}),
        code="config.quantization",
    ),
    Variant("norm epsilon changed", edited(CONFIG, rms_norm_eps=0.1), code="config.fields"),
    Variant("sampling in generation config", edited(GENERATION, **_SAMPLING), code="generation.sampling"),
    Variant("no generation config", without(GENERATION), code="generation"),
)
_TOKENIZERS = (
    Variant(
        "extra special tokens as a list",
        edited(SETTINGS, extra_special_tokens=["<|im_start|>", "<|im_end|>"]),
        code="tokenizer.extra",
    ),
    Variant(
        "tokenizer class of transformers 5",
        edited(SETTINGS, tokenizer_class="TokenizersBackend"),
        code="tokenizer.class",
    ),
    Variant("no tokenizer", without("tokenizer.json", SETTINGS), code="tokenizer"),
    Variant("tokenizer cuts", _truncating, code="tokenizer.truncation"),
    Variant("short model_max_length", edited(SETTINGS, model_max_length=12), code="tokenizer.settings"),
    Variant("two ids swapped", _swapped_ids, code="tokenizer.ids"),
    Variant("no chat template", without("chat_template.jinja"), code="template"),
    Variant("template inside tokenizer_config", _template_inside),
    Variant(
        "two templates that differ", edited(SETTINGS, chat_template="{{ messages }}"), code="template.two"
    ),
    Variant("examples in the template", _few_shot_template, code="template"),
)
VARIANTS = (*_NAMES, *_FILES, *_FORMS, *_CONFIGS, *_TOKENIZERS)


def build(variant: Variant, healthy: Path, base: Path, target: Path) -> Path:
    """The variant as a folder of its own."""
    shutil.copytree(healthy, target)
    for path in target.iterdir():
        path.chmod(0o644)
    variant.make(target, base)
    return target
