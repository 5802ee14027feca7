"""What a complete model folder holds, read without torch: files, safetensors headers, config."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
_CARRIED = re.compile(
    r"config\.json|generation_config\.json|model\.safetensors\.index\.json"
    r"|(?:tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template|tekken)\.json"
    r"|merges\.txt|vocab\.txt|tokenizer\.model|spiece\.model|.*\.tiktoken|chat_template\.jinja"
    r"|additional_chat_templates/[^/]+\.jinja|(?:LICENSE|LICENCE|NOTICE)[^/]*"
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LONGEST_HEADER = 100 << 20


class ModelFacts(Frozen):
    """What the harness needs to know of a base model before any worker has opened it."""

    model_type: str
    architecture: str
    dtype: str
    """That of most stored elements."""
    parameters: int
    """Elements of all stored tensors; a tied head counts once."""
    weight_bytes: int
    tied: bool
    vocab_size: int | None = None
    hidden_size: int | None = None
    max_length: int | None = None
    """Context length in tokens."""
    has_chat_template: bool

    @property
    def untied_fp32_bytes(self) -> int:
        """Size of the same model in fp32 with a head of its own: the largest honest submission."""
        head = (self.vocab_size or 0) * (self.hidden_size or 0) if self.tied else 0
        return 4 * (self.parameters + head)


@dataclass(frozen=True)
class _Tensor:
    dtype: str
    elements: int
    end: int


def is_carried(name: str) -> bool:
    """Whether a file other than weights belongs to a model; `name` is relative to its folder."""
    return _CARRIED.fullmatch(name) is not None


def choose_weights(names: Iterable[str], index: bytes | None) -> list[str]:
    """The weight files that a loader reads: the single file if there is one, else what the index names."""
    if WEIGHTS in set(names):
        return [WEIGHTS]
    if index is None:
        return []
    return sorted(set(_weight_map(index).values()))


def model_files(folder: Path) -> list[str]:
    """Names of all files in `folder` that are part of the model; whether they are whole is not looked at."""
    found = [path.name for path in folder.iterdir() if path.is_file()]
    extra = folder / "additional_chat_templates"
    templates = [f"{extra.name}/{path.name}" for path in extra.iterdir()] if extra.is_dir() else []
    index = (folder / INDEX).read_bytes() if INDEX in found else None
    weights = set(choose_weights(found, index)) & set(found)
    carried = {name for name in (*found, *templates) if is_carried(name)}
    if WEIGHTS in found:
        carried.discard(INDEX)
    return sorted(carried | weights)


def check_model_folder(folder: Path) -> list[str]:
    """The names of the model's files, after a check that none is missing or cut.

    Raises UsageError that says what is wrong and what to do.
    """
    try:
        found = {path.name for path in folder.iterdir()}
        if CONFIG not in found:
            raise UsageError(f"{folder}: not a model folder: {CONFIG} is missing")
        _read_json(folder / CONFIG)
        _check_loadable(folder, found)
        for name, tensors in _expected_weights(folder, found).items():
            _check_weights(folder / name, tensors)
        if not found.intersection(_TOKENIZERS):
            raise UsageError(f"{folder}: no tokenizer ({_TOKENIZERS[0]} is missing)")
        return model_files(folder)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error


def read_facts(folder: Path) -> ModelFacts:
    """Facts from config, tokenizer files and safetensors headers of a checked folder."""
    config = _read_json(folder / CONFIG)
    text = config.get("text_config")
    body = {**text, **config} if isinstance(text, dict) else config
    tensors = [tensor for name in _weight_names(folder) for tensor in read_header(folder / name).values()]
    elements = Counter[str]()
    for tensor in tensors:
        elements[tensor.dtype] += tensor.elements
    most = elements.most_common(1)[0][0] if elements else "F32"
    architectures = config.get("architectures") or [config.get("model_type", "unknown")]
    return ModelFacts(
        model_type=str(config.get("model_type", "unknown")),
        architecture=str(architectures[0]),
        dtype=_NAMES.get(most, most),
        parameters=sum(elements.values()),
        weight_bytes=sum((folder / name).stat().st_size for name in _weight_names(folder)),
        tied=bool(body.get("tie_word_embeddings", True)),
        vocab_size=_whole(body.get("vocab_size")),
        hidden_size=_whole(body.get("hidden_size")),
        max_length=_whole(body.get("max_position_embeddings")),
        has_chat_template=_has_chat_template(folder),
    )


def read_header(path: Path) -> dict[str, _Tensor]:
    """Tensors by name, from a safetensors header alone. UsageError if it is not a whole header."""
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if start.startswith(b"version "):
            raise UsageError(f"{path}: a git-lfs pointer, not the weights; run `git lfs pull` in its folder")
        if len(start) < 8 or length > _LONGEST_HEADER:
            raise UsageError(f"{path}: not a safetensors file")
        raw = file.read(length)
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        return {
            name: _Tensor(entry["dtype"], math.prod(entry["shape"]), 8 + length + entry["data_offsets"][1])
            for name, entry in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(f"{path}: its safetensors header is damaged or cut") from error


def _check_loadable(folder: Path, found: set[str]) -> None:
    if "adapter_config.json" in found:
        raise UsageError(
            f"{folder}: holds an adapter; merge it into its base (merge_and_unload) and save the whole model"
        )
    if WEIGHTS in found or INDEX in found:
        return
    if any(name.endswith(_PICKLES) for name in found):
        remedy = "load it with transformers and save_pretrained() it to a new folder"
        raise UsageError(f"{folder}: weights only as pickles, which are never opened here; {remedy}")
    if any(name.endswith(".gguf") for name in found):
        raise UsageError(f"{folder}: weights only as GGUF; give a folder with safetensors instead")
    raise UsageError(f"{folder}: no weights: neither {WEIGHTS} nor {INDEX}")


def _expected_weights(folder: Path, found: set[str]) -> dict[str, Sequence[str]]:
    """Which tensors each weight file must hold; a single file may hold any."""
    if WEIGHTS in found:
        return {WEIGHTS: ()}
    try:
        placed = _weight_map((folder / INDEX).read_bytes())
    except ValueError as error:
        raise UsageError(f"{folder / INDEX}: {error}") from error
    files = sorted(set(placed.values()))
    if missing := [name for name in files if name not in found]:
        raise UsageError(f"{folder}: {missing[0]} is missing ({len(missing)} of {len(files)} shards are)")
    return {file: [tensor for tensor, holder in placed.items() if holder == file] for file in files}


def _check_weights(path: Path, expected: Sequence[str]) -> None:
    tensors = read_header(path)
    if not tensors:
        raise UsageError(f"{path}: holds no tensors")
    size, needed = path.stat().st_size, max(tensor.end for tensor in tensors.values())
    if size != needed:
        raise UsageError(f"{path}: {size} bytes where its header says {needed}; fetch it again")
    if absent := [name for name in expected if name not in tensors]:
        raise UsageError(f"{path}: tensor {absent[0]!r} is in the index but not in the file")


def _weight_names(folder: Path) -> list[str]:
    found = [path.name for path in folder.iterdir()]
    index = (folder / INDEX).read_bytes() if INDEX in found else None
    return choose_weights(found, index)


def _weight_map(index: bytes) -> dict[str, str]:
    try:
        placed = json.loads(index)["weight_map"]
        names = {str(tensor): str(file) for tensor, file in placed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("not an index of safetensors files") from error
    if not names or any("/" in file or not file.endswith(".safetensors") for file in names.values()):
        raise ValueError("not an index of safetensors files beside it")
    return names


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object")
    return value


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and bool(_read_json(path).get("chat_template"))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
