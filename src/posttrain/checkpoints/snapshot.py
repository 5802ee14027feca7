"""The grader's own copy of a submission: taken once, at acceptance; everything later is about the copy.

What an agent hands in is a path whose content it can change at any moment. So each file is hashed while
it is copied, a folder that moves under the copy gets one more chance, and the digest of the copy is the
submission's identity.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from blake3 import blake3

from posttrain.checkpoints.architecture import read_config
from posttrain.checkpoints.headers import (
    INDEX_NAME,
    SINGLE_NAME,
    Incomplete,
    check_complete,
    parse_index,
    read_weights,
    weight_names,
)
from posttrain.checkpoints.intake import (
    Changed,
    Entry,
    Seen,
    list_folder,
    look,
    opened_file,
    opened_folder,
    printable,
)
from posttrain.core.errors import InfrastructureError, Rejected, StorageFull, Unloadable
from posttrain.core.frozen import Frozen
from posttrain.infra.digests import digest_value
from posttrain.infra.files import sync_folder

SMALL_FILES = ("config.json", "generation_config.json", "scripted.json")
"""What is read as data besides weights and their index. Nothing else of a submission is ever looked at.

scripted.json is what the scripted engine answers by; no other engine opens it."""
BLOCK = 1 << 17
"""Written at a time. The kernel takes pieces of memory of about this size for its cache, and virtual machines
run out of small ones later: 270 MB took 0.2 s as long as there were some, 0.7 s without."""
_ROOM = 1.1
_FLOAT32_BYTES = 4
_LISTED = 100


@dataclass(frozen=True)
class SnapshotLimits:
    """What a checkpoint of the base may at most be."""

    weight_bytes: int
    """1.1 times the base in fp32 with a head of its own."""
    weight_files: int = 1000
    small_bytes: int = 32 << 20
    """Each of the small files."""
    entries: int = 10_000
    settle_s: float = 2.0
    """Wait before the one second look at a folder that is not at rest."""

    @classmethod
    def for_base(cls, folder: Path) -> SnapshotLimits:
        """Room for the base in float32 with a head of its own, and a tenth more."""
        weights, config = read_weights(folder), read_config(folder) or {}
        head = 0 if "lm_head.weight" in weights.tensors else _elements_of_head(config)
        return cls(weight_bytes=int((weights.elements + head) * _FLOAT32_BYTES * _ROOM))


def _elements_of_head(config: Mapping[str, Any]) -> int:
    sizes = (config.get("vocab_size"), config.get("hidden_size"))
    return prod(size for size in sizes if isinstance(size, int)) if None not in sizes else 0


class Snapshot(Frozen):
    """A complete copy."""

    digest: str
    """BLAKE3 over names and bytes, as infra.digests.digest_tree computes it."""
    files: tuple[str, ...]
    ignored: tuple[str, ...]
    """What lies in the folder and was not copied; at most a hundred names, then a count."""
    bytes: int


def take_snapshot(
    workspace: Path,
    relative: str,
    target: Path,
    *,
    limits: SnapshotLimits,
    cancelled: threading.Event | None = None,
) -> Snapshot:
    """Copy the checkpoint in `workspace/relative` to `target`, which appears complete and durable or never.

    Raises Rejected (links, special files, over a limit, adapters or pickles only), Unloadable (incomplete,
    unreadable, still being written), StorageFull, and InfrastructureError for anything that is our fault or
    when `cancelled` is set meanwhile.
    """
    cancelled = cancelled or threading.Event()
    path = PurePosixPath(relative)
    try:
        return _attempt(workspace, path, target, limits=limits, cancelled=cancelled)
    except (Changed, Incomplete):
        cancelled.wait(limits.settle_s)
    try:
        return _attempt(workspace, path, target, limits=limits, cancelled=cancelled)
    except Changed as change:
        raise Unloadable(
            f"still being written: {change}",
            hint="Submit after saving has returned, and save each version to a folder of its own.",
        ) from change


def _attempt(
    workspace: Path,
    relative: PurePosixPath,
    target: Path,
    *,
    limits: SnapshotLimits,
    cancelled: threading.Event,
) -> Snapshot:
    with opened_folder(workspace, relative) as folder, _part_of(target) as part:
        entries = list_folder(folder, limit=limits.entries)
        names = _chosen(folder, entries, limits=limits)
        _refuse_too_large(folder, names, part, limits=limits)
        copies = {name: _copy_file(folder, name, part, limits=limits, cancelled=cancelled) for name in names}
        for name, (seen, _) in copies.items():
            if Seen.of(look(folder, name)) != seen:
                raise Changed(f"{printable(name)} changed while it was copied")
        check_complete(part)
        with _writing():
            sync_folder(part)
            part.rename(target)
            sync_folder(target.parent)
    return Snapshot(
        digest=digest_value({name: digest for name, (_, digest) in copies.items()}),
        files=tuple(names),
        ignored=_ignored(entries, names),
        bytes=sum(seen.size for seen, _ in copies.values()),
    )


def _chosen(folder: int, entries: Sequence[Entry], *, limits: SnapshotLimits) -> list[str]:
    """The weight files that count and the small files beside them, sorted."""
    names = [entry.name for entry in entries if not entry.is_folder]
    index = None
    if INDEX_NAME in names and SINGLE_NAME not in names:
        index = parse_index(_read_small(folder, INDEX_NAME, limits=limits))
    try:
        weights = weight_names(names, index)
    except Unloadable as fault:
        if (hint := _hint_about_folders(entries)) is None:
            raise
        raise Unloadable(fault.reason, hint=hint) from fault
    if len(weights) > limits.weight_files:
        raise Rejected(
            f"{INDEX_NAME} names {len(weights)} files", hint=f"Save at most {limits.weight_files} shards."
        )
    if index is not None:
        weights += (INDEX_NAME,)
    return sorted({*weights, *(name for name in SMALL_FILES if name in names)})


def _hint_about_folders(entries: Sequence[Entry]) -> str | None:
    """Weights one level too deep are the usual reason for a folder without any."""
    folders = [printable(entry.name) for entry in entries if entry.is_folder]
    if not folders or any(entry.name.endswith(".safetensors") for entry in entries):
        return None
    return f"Sub-folders are not searched; if the model is in one, submit that: {', '.join(folders[:5])}."


def _read_small(folder: int, name: str, *, limits: SnapshotLimits) -> bytes:
    with opened_file(folder, name) as (file, seen):
        _refuse_large_small_file(name, seen.size, limits=limits)
        content = bytearray()
        while len(content) <= seen.size and (block := os.read(file, BLOCK)):
            content += block
    if len(content) != seen.size:
        raise Changed(f"{name} changed while it was read")
    return bytes(content)


def _refuse_too_large(folder: int, names: Sequence[str], part: Path, *, limits: SnapshotLimits) -> None:
    """By listed sizes, before a byte is copied; copying itself keeps to these sizes."""
    sizes = {name: look(folder, name).st_size for name in names}
    weights = sum(size for name, size in sizes.items() if name.endswith(".safetensors"))
    if weights > limits.weight_bytes:
        raise Rejected(
            f"{weights:,} bytes of weights, at most {limits.weight_bytes:,} are taken",
            hint="A fine-tune of the base in float32 fits; save bfloat16 and only what the model needs.",
        )
    for name, size in sizes.items():
        if not name.endswith(".safetensors"):
            _refuse_large_small_file(name, size, limits=limits)
    if sum(sizes.values()) > shutil.disk_usage(part).free:
        raise StorageFull(f"{sum(sizes.values()):,} bytes do not fit on the lab's disk")


def _refuse_large_small_file(name: str, size: int, *, limits: SnapshotLimits) -> None:
    if size > limits.small_bytes:
        raise Rejected(f"{name} has {size:,} bytes", hint=f"At most {limits.small_bytes:,} are read.")


def _copy_file(
    folder: int, name: str, part: Path, *, limits: SnapshotLimits, cancelled: threading.Event
) -> tuple[Seen, str]:
    with opened_file(folder, name) as (source, seen), _writing():
        if seen.size > max(limits.weight_bytes, limits.small_bytes):
            raise Changed(f"{printable(name)} grew")
        copy = os.open(part / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(copy, 0o644)  # whatever the umask: grading runs as another user
            copied, digest = copy_hashed(source, copy, size=seen.size, cancelled=cancelled)
            os.fsync(copy)
        finally:
            os.close(copy)
    if copied != seen.size:
        raise Changed(f"{printable(name)} changed its length")
    return seen, digest


def copy_hashed(
    source: int, target: int, *, size: int, cancelled: threading.Event | None = None, block: int = BLOCK
) -> tuple[int, str]:
    """Copy `size` bytes, and at most a block more, in one pass; how many came and their BLAKE3."""
    buffer = memoryview(bytearray(block))
    hasher = blake3()
    copied = 0
    while copied <= size and (count := os.readv(source, [buffer])):
        if cancelled is not None and cancelled.is_set():
            raise InfrastructureError("the copy was stopped")
        piece = buffer[:count]
        hasher.update(piece)
        while piece:
            piece = piece[os.write(target, piece) :]
        copied += count
    return copied, hasher.hexdigest()


@contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """A folder beside `target` to fill; whatever is left of it at the end goes away."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    with _writing():
        part.mkdir(parents=True)
        part.chmod(0o755)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _writing() -> Iterator[None]:
    """A full disk by its name, any other trouble with files as the lab's fault."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no space left for the copy: {error.strerror}") from error
        raise InfrastructureError(f"copying failed: {error}") from error


def _ignored(entries: Sequence[Entry], names: Sequence[str]) -> tuple[str, ...]:
    copied = set(names)
    others = [
        printable(entry.name) + ("/" if entry.is_folder else "")
        for entry in entries
        if entry.name not in copied
    ]
    more = len(others) - _LISTED
    return tuple(others[:_LISTED]) + ((f"… and {more} more",) if more > 0 else ())
