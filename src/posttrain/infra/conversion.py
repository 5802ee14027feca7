"""GGUF to a safetensors folder, once, in a process of its own: `python -m posttrain.infra.conversion`.

The weights are de-quantised and rounded to the dtype asked for. A GGUF names its pre-tokenizer only by
a word, and transformers takes byte-level splitting for all of them: where our table knows better, the
tokenizer is mended, because other token ids are another model.
"""

from __future__ import annotations

import json
import mmap
import struct
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from posttrain.core.errors import InfrastructureError, UsageError, boundary
from posttrain.core.frozen import Frozen
from posttrain.infra.fetching import Progress, serve

LIBRARIES = ("torch", "transformers", "tokenizers", "gguf")
_GGUF_STRING = 8
_KNOWN_RIGHT = {"qwen2", "gpt-2", "default"}
"""Pre-tokenizers that transformers' own reading of the file gets right."""


class ConversionJob(Frozen):
    gguf: str
    target: str
    """A folder that does not exist yet."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"


class Converted(Frozen):
    seconds: float
    made_by: dict[str, str]
    notes: tuple[str, ...]


def convert(job: ConversionJob) -> Converted:
    """Write config, weights, tokenizer and generation settings of one GGUF as transformers reads them."""
    started = time.monotonic()
    source, target = Path(job.gguf), Path(job.target)
    with boundary(InfrastructureError, f"converting {source.name}"):
        model, tokenizer = _load(source)
        notes = _mend_tokenizer(tokenizer, _pre_tokenizer(source))
        tokenizer.model_max_length = model.config.max_position_embeddings
        _save(model, tokenizer, target, dtype=job.dtype)
        del model
        _check(target, tokenizer)
    return Converted(
        seconds=round(time.monotonic() - started, 2),
        made_by={name: version(name) for name in LIBRARIES},
        notes=(f"de-quantised from GGUF and stored as {job.dtype}", *notes),
    )


def _pre_tokenizer(source: Path) -> str:
    """What the file says under `tokenizer.ggml.pre`; reading all of its metadata takes seconds."""
    key = b"tokenizer.ggml.pre"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<I", _GGUF_STRING)
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(entry)
        if start < 0:
            return "default"
        (length,) = struct.unpack_from("<Q", data, start + len(entry))
        text = start + len(entry) + 8
        return bytes(data[text : text + min(length, 100)]).decode("utf-8", "replace")


def _load(source: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    return model, tokenizer


def _mend_tokenizer(tokenizer: Any, pre: str) -> tuple[str, ...]:
    """Give the tokenizer the splitting rule that the file names; sentences about what was done."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    if pre == "smollm":
        bytes_of = ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), bytes_of])
        return ("pre-tokenizer smollm: digits are split one by one before byte-level splitting",)
    if pre in _KNOWN_RIGHT:
        return ()
    return (f"pre-tokenizer {pre!r} is taken over as transformers reads it, unchecked",)


def _save(model: Any, tokenizer: Any, target: Path, *, dtype: str) -> None:
    import torch

    # transformers refuses to save a model that still says it is quantised
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    model.config.name_or_path = ""
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    _edit(target / "config.json", drop=("_model_name_or_path",))
    # the older name of the class is read by transformers 4 and 5 alike
    _edit(
        target / "tokenizer_config.json",
        drop=("is_local", "local_files_only"),
        tokenizer_class="PreTrainedTokenizerFast",
    )


def _edit(path: Path, *, drop: tuple[str, ...], **values: Any) -> None:
    settings = json.loads(path.read_text("utf-8"))
    if "rms_norm_eps" in settings:  # stored as float32 in a GGUF: 9.999999747378752e-06 was 1e-05
        settings["rms_norm_eps"] = float(f"{settings['rms_norm_eps']:.6g}")
    kept = {name: value for name, value in settings.items() if name not in drop}
    path.write_text(json.dumps({**kept, **values}, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _check(target: Path, tokenizer: Any) -> None:
    """Read the folder back as every user of it will: no tensor missing, the same token ids."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, report = AutoModelForCausalLM.from_pretrained(
        target, output_loading_info=True, local_files_only=True, dtype="auto"
    )
    wrong = {name: found for name, found in report.items() if found}
    if wrong:
        raise InfrastructureError(f"the converted model does not read back: {wrong}")
    sample = "a\n\n12.  345 + 6 = x;\tdef f(x):  # it's 你好"
    again = AutoTokenizer.from_pretrained(target, local_files_only=True)
    if again(sample)["input_ids"] != tokenizer(sample)["input_ids"]:
        raise InfrastructureError("the converted tokenizer does not read back: other token ids")


def _handle(line: bytes, _progress: Progress) -> Frozen:
    job = ConversionJob.model_validate_json(line)
    if not Path(job.gguf).is_file():
        raise UsageError(f"{job.gguf}: no such file")
    return convert(job)


if __name__ == "__main__":
    serve(_handle)
