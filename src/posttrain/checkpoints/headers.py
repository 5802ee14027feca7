"""What safetensors files say about themselves, read with the standard library and without trust."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from posttrain.core.errors import Rejected, SubmissionFault, Unloadable

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_HEADER_CAP = 64 << 20
_INDEX_CAP = 64 << 20
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_PICKLE = re.compile(r".*\.(bin|pt|pth|pkl|ckpt)$")
_NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pt|pth|pkl)$")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,6})-of-(?P<count>\d{1,6})\.safetensors")
_LFS = b"version https://git-lfs"
_LISTED = 3

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip

_LONG_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}

SAVE_AGAIN = "Save the whole model again: model.save_pretrained(path, safe_serialization=True)."
MERGE = "Merge the adapter first: model.merge_and_unload().save_pretrained(path, safe_serialization=True)."
WAIT = "Wait until saving has ended (write to a new folder, then submit it)."


class Incomplete(Unloadable):
    """Files are shorter than they say, or some are missing: as while a save is still going on."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    """First byte, counted from the start of the file."""
    end: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Header:
    """One safetensors file."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Weights:
    """All tensors of a checkpoint folder."""

    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()
    """What the folder's index says otherwise than its files, which count; each a sentence."""

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors.values())

    def main_dtype(self) -> str:
        """The dtype in which most elements are stored."""
        counts: dict[str, int] = {}
        for tensor in self.tensors.values():
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.elements
        main = max(sorted(counts), key=lambda dtype: counts[dtype])
        return _LONG_NAMES.get(main, main)


def read_weights(folder: Path) -> Weights:
    """The tensors of a checkpoint, if its files are complete and agree with each other.

    Raises Rejected for weights in a form that is against the rules, Incomplete for files that are cut
    off or missing, Unloadable for everything else that is wrong.
    """
    names = [entry.name for entry in folder.iterdir() if entry.is_file()]
    index = _read_index(folder / INDEX_NAME) if INDEX_NAME in names else None
    chosen = weight_names(names, index)
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for name in chosen:
        header = read_header(folder / name)
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise Unloadable(f"tensor {min(twice)} is in two files, one of them {name}", hint=SAVE_AGAIN)
        tensors.update(header.tensors)
        metadata.update(header.metadata)
    if not tensors:
        raise Unloadable("the weight files hold no tensor", hint=SAVE_AGAIN)
    repairs = () if SINGLE_NAME in chosen else tuple(_index_repairs(chosen, index, tensors))
    return Weights(tuple(folder / name for name in chosen), tensors, metadata, repairs)


def check_complete(folder: Path) -> None:
    """Raise as `read_weights` does unless the folder holds whole weights that agree with their index."""
    read_weights(folder)


def weight_names(names: Collection[str], index: Mapping[str, str] | None) -> tuple[str, ...]:
    """Which of a folder's files are the model's weights, in order: the single file, else the index's.

    Without either, a whole set of numbered shards, or the one safetensors file that there is. `index` maps
    tensor names to files. Raises as `read_weights` does when there are none.
    """
    if SINGLE_NAME in names:
        return (SINGLE_NAME,)
    if index is not None:
        listed = tuple(sorted(set(index.values())))
        missing = [name for name in listed if name not in names]
        if missing:
            raise Incomplete(f"the index names {missing[0]}, which is not in the folder", hint=WAIT)
        return listed
    loose = sorted(n for n in names if n.endswith(".safetensors") and n not in _ADAPTER_FILES)
    shards = [match for name in loose if (match := _SHARD.fullmatch(name))]
    if shards:
        return _whole_set(shards)
    if len(loose) == 1:
        return (loose[0],)
    raise _without_weights(names)


def _whole_set(shards: list[re.Match[str]]) -> tuple[str, ...]:
    """The names of numbered shards without an index, if it is one set and none is missing."""
    sets = {(match["stem"], int(match["count"])) for match in shards}
    numbers = sorted(int(match["number"]) for match in shards)
    if len(sets) > 1:
        raise Unloadable(
            f"shards of {len(sets)} checkpoints lie in one folder, without {INDEX_NAME}", hint=SAVE_AGAIN
        )
    ((_, count),) = sets
    if numbers != list(range(1, count + 1)):
        raise Incomplete(f"{len(numbers)} of {count} shards are there, and no {INDEX_NAME}", hint=WAIT)
    return tuple(match[0] for match in shards)


def read_header(path: Path) -> Header:
    """The header of one file, checked against its length: ranges in order, without gaps, to the end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        lead = file.read(8)
        if len(lead) < 8:
            raise Incomplete(f"{path.name} is {size} bytes long", hint=WAIT)
        (length,) = struct.unpack("<Q", lead)
        if _LFS.startswith(lead):
            raise Unloadable(
                f"{path.name} is a git-lfs pointer, not the weights", hint="Run git lfs pull first."
            )
        if length > _HEADER_CAP:
            raise Unloadable(f"{path.name} is not a safetensors file", hint=SAVE_AGAIN)
        raw = file.read(length)
    if len(raw) < length:
        raise Incomplete(f"{path.name} ends inside its header", hint=WAIT)
    entries = _json_object(raw, path.name)
    metadata = entries.pop("__metadata__", None)
    tensors = {name: _tensor(name, entry, path, 8 + length) for name, entry in entries.items()}
    _check_ranges(tensors, path, begin=8 + length, size=size)
    return Header(tensors, _strings(metadata))


def _tensor(name: str, entry: Any, path: Path, begin: int) -> TensorInfo:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise _bad_header(path, name) from None
    numbers = [*shape, start, end] if isinstance(shape, list) else [None]
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers):
        raise _bad_header(path, name)
    if not isinstance(dtype, str):
        raise _bad_header(path, name)
    if dtype not in ITEM_BYTES:
        raise Unloadable(f"tensor {name} is stored as {dtype}", hint="Save in bfloat16, float16 or float32.")
    if prod(shape) * ITEM_BYTES[dtype] != end - start:
        raise _bad_header(path, name)
    return TensorInfo(name, dtype, tuple(shape), path, begin + start, begin + end)


def _check_ranges(tensors: Mapping[str, TensorInfo], path: Path, *, begin: int, size: int) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    position = begin
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != position:
            raise _bad_header(path, tensor.name)
        position = tensor.end
    if size < position:
        raise Incomplete(f"{path.name} has {size} bytes of the {position} that its header names", hint=WAIT)
    if size > position:
        raise Unloadable(f"{path.name} is longer than its header says", hint=SAVE_AGAIN)


def _index_repairs(
    chosen: Collection[str], index: Mapping[str, str] | None, tensors: Mapping[str, TensorInfo]
) -> Iterator[str]:
    """Sentences about what the index says wrongly: the files' own headers are what counts."""
    if index is None:
        listed = ", ".join(sorted(chosen)[:_LISTED])
        yield f"{INDEX_NAME} is missing; the files' own headers are used ({listed})"
        return
    absent = [name for name in index if name not in tensors]
    elsewhere = [name for name, file in index.items() if name in tensors and tensors[name].file.name != file]
    unnamed = sorted(tensors.keys() - index.keys())
    for names, what in ((absent, "that no file holds"), (elsewhere, "in another file than they are in")):
        if names:
            yield f"the index names {len(names)} tensors {what} ({names[0]}, …); the files count"
    if unnamed:
        yield f"the index does not name {len(unnamed)} tensors ({unnamed[0]}, …); the files count"


def _read_index(path: Path) -> dict[str, str]:
    return parse_index(path.read_bytes())


def parse_index(raw: bytes) -> dict[str, str]:
    """Tensor name to file name; only names of files beside the index are accepted."""
    if len(raw) > _INDEX_CAP:
        raise Unloadable(f"{INDEX_NAME} is too long", hint=SAVE_AGAIN)
    weight_map = _json_object(raw, INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Unloadable(f"{INDEX_NAME} has no weight_map", hint=SAVE_AGAIN)
    for file in weight_map.values():
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file:
            raise Unloadable(f"{INDEX_NAME} names something that is no safetensors file", hint=SAVE_AGAIN)
    return weight_map


def _json_object(raw: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise Unloadable(f"{name} does not hold valid JSON where it must", hint=SAVE_AGAIN) from None
    if not isinstance(value, dict):
        raise Unloadable(f"{name} does not hold a JSON object where it must", hint=SAVE_AGAIN)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _strings(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict):
        return {}
    return {str(key): value for key, value in metadata.items() if isinstance(value, str)}


def _bad_header(path: Path, name: str) -> Unloadable:
    return Unloadable(f"the header of {path.name} is wrong about tensor {name}", hint=SAVE_AGAIN)


def _without_weights(names: Collection[str]) -> SubmissionFault:
    if any(name in names for name in _ADAPTER_FILES):
        return Rejected("only an adapter was handed in, not a whole model", hint=MERGE)
    pickles = sorted(n for n in names if _PICKLE.match(n) and not _NOT_WEIGHTS.match(n))
    if pickles:
        return Rejected(f"the weights are in a pickle ({pickles[0]}), which is never opened", hint=SAVE_AGAIN)
    loose = sorted(n for n in names if n.endswith(".safetensors"))
    if loose:
        return Unloadable(f"{loose[0]} is neither {SINGLE_NAME} nor named by {INDEX_NAME}", hint=SAVE_AGAIN)
    return Unloadable(f"no {SINGLE_NAME} in the folder", hint=SAVE_AGAIN)
