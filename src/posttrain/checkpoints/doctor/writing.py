"""Writing the mended copy: whole or not there. Weights are copied byte by byte from where they lie."""

from __future__ import annotations

import json
import secrets
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from posttrain.checkpoints.doctor.examination import Examination
from posttrain.checkpoints.doctor.findings import Draft
from posttrain.checkpoints.headers import (
    INDEX_NAME,
    ITEM_BYTES,
    SINGLE_NAME,
    TensorInfo,
    Weights,
    read_weights,
)
from posttrain.checkpoints.matching import Taken
from posttrain.core.errors import Unloadable, UsageError
from posttrain.infra.files import write_atomic, write_json

SHARD_BYTES = 5_000_000_000
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Piece:
    """One tensor of the copy and the stored bytes that it is made of."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    ranges: tuple[tuple[Path, int, int], ...]

    @property
    def size(self) -> int:
        return sum(end - start for _, start, end in self.ranges)


def write_copy(examination: Examination, target: Path, *, shard_bytes: int = SHARD_BYTES) -> tuple[str, ...]:
    """Write the mended copy to `target`, which must not exist; the names of its files.

    UsageError if the folder exists or lies in the patient's, Unloadable for a folder that no copy can mend.
    """
    if target.exists():
        raise UsageError(f"--fix: {target} exists already; name a new folder")
    if target.resolve().is_relative_to(examination.patient.folder.resolve()):
        raise UsageError(f"--fix: {target} lies in the folder that it is a copy of")
    if not examination.draft.complete:
        fault = next(iter(examination.incurable), None)
        raise Unloadable(
            fault.text if fault else "the weights cannot be read", hint=fault.remedy if fault else ""
        )
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    part.mkdir(parents=True)
    try:
        _write_small_files(examination, part)
        _write_weights(list(_pieces(examination)), part, shard_bytes=shard_bytes)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return tuple(sorted(path.name for path in target.iterdir()))


def _write_small_files(examination: Examination, part: Path) -> None:
    draft, patient = examination.draft, examination.patient
    for name, document in draft.documents.items():
        if name == "tokenizer.json":  # large, and read by machines only
            write_atomic(part / name, json.dumps(document, ensure_ascii=False), durable=False)
        else:
            write_json(part / name, document, durable=False)
    for name, text in draft.texts.items():
        write_atomic(part / name, text, durable=False)
    for name in draft.from_base:
        assert patient.base is not None
        shutil.copyfile(patient.base / name, part / name)
    for name in draft.from_folder - draft.from_base - draft.documents.keys():
        shutil.copyfile(patient.folder / name, part / name)


def _pieces(examination: Examination) -> Iterator[_Piece]:
    draft = examination.draft
    if draft.plan is None:
        assert draft.weights is not None
        for info in draft.weights.tensors.values():
            yield _whole(info.name, info)
        return
    assert examination.patient.base is not None
    base = read_weights(examination.patient.base)
    for name, taken in draft.plan.sources.items():
        if name != draft.plan.head or draft.own_head:
            yield _taken(name, taken, _reference(name, base, draft))


def _reference(name: str, base: Weights, draft: Draft) -> TensorInfo:
    """The base's tensor; of a head that it ties, its embedding."""
    embedding = draft.head.embedding if draft.head is not None else None
    return base.tensors[name if name in base.tensors else embedding or name]


def _whole(name: str, info: TensorInfo) -> _Piece:
    return _Piece(name, info.dtype, info.shape, ((info.file, info.start, info.end),))


def _taken(name: str, taken: Taken, base: TensorInfo) -> _Piece:
    info = taken.info
    if taken.rows is None:
        return _whole(name, info)
    row = info.shape[1] * ITEM_BYTES[info.dtype]
    own = (info.file, info.start, info.start + taken.rows * row)
    if not taken.base_rows:
        return _Piece(name, info.dtype, (taken.rows, *info.shape[1:]), (own,))
    if base.dtype != info.dtype:
        raise Unloadable(
            f"{name}: rows of the base are missing and cannot be added to {info.dtype}",
            hint=f"Save in the base's precision ({base.dtype}), then mend.",
        )
    return _Piece(name, info.dtype, base.shape, (own, (base.file, base.start + taken.rows * row, base.end)))


def _write_weights(pieces: list[_Piece], part: Path, *, shard_bytes: int) -> None:
    shards = list(_sharded(pieces, shard_bytes))
    if len(shards) == 1:
        _write_file(part / SINGLE_NAME, shards[0])
        return
    placed: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_file(part / name, shard)
        placed |= dict.fromkeys((piece.name for piece in shard), name)
    total = sum(piece.size for piece in pieces)
    write_json(part / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": placed}, durable=False)


def _sharded(pieces: list[_Piece], most: int) -> Iterator[list[_Piece]]:
    shard: list[_Piece] = []
    for piece in pieces:
        if shard and sum(other.size for other in shard) + piece.size > most:
            yield shard
            shard = []
        shard.append(piece)
    yield shard


def _write_file(path: Path, pieces: list[_Piece]) -> None:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for piece in pieces:
        end = position + piece.size
        entries[piece.name] = {
            "dtype": piece.dtype,
            "shape": list(piece.shape),
            "data_offsets": [position, end],
        }
        position = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for piece in pieces:
            for source, start, end in piece.ranges:
                _copy_range(source, start, end, file)


def _copy_range(source: Path, start: int, end: int, target: BinaryIO) -> None:
    with source.open("rb") as file:
        file.seek(start)
        while start < end:
            block = file.read(min(_BLOCK, end - start))
            if not block:
                raise Unloadable(f"{source.name} was cut while it was copied", hint="Try again.")
            target.write(block)
            start += len(block)
