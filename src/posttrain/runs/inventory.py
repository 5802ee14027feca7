"""What every file of a run held when it was closed, so that a later edit of any of them can be named."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from posttrain.core.paths import RunPaths
from posttrain.infra.digests import digest_bytes, digest_file
from posttrain.infra.walking import walk

READ_WHOLE = 16 << 20
"""Larger files below the workspace are the agent's checkpoints: of these samples are read."""
_SAMPLES = 32
_SAMPLE = 64 << 10


def take_inventory(paths: RunPaths) -> dict[str, str]:
    """`relative name -> mark` for all files that are final when a run closes.

    Left out are the ledger, which proves itself, and record.json and run.log, which are written after this;
    of run.log the mark of what it holds now is kept. What the agent has put where no path reaches, or made
    unreadable to us, is named without its content.
    """
    foreign = paths.workspace.root
    return {name: _mark(path, sampled=path.is_relative_to(foreign)) for name, path in sorted(_files(paths))}


def _mark(path: Path, *, sampled: bool) -> str:
    """What stands for the content of one path: a digest, a link's target, or its kind."""
    try:
        return _mark_of(path, path.lstat(), sampled=sampled)
    except OSError:
        if not sampled:  # a file of ours
            raise
        return "unreadable"


def _mark_of(path: Path, status: os.stat_result, *, sampled: bool) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "too deep"
    if stat.S_ISLNK(status.st_mode):
        return f"link:{digest_bytes(os.fsencode(path.readlink()))}"
    if not stat.S_ISREG(status.st_mode):
        return "special"
    if sampled and status.st_size > READ_WHOLE:
        return f"sampled:{status.st_size}:{status.st_mtime_ns}:{_digest_of_samples(path, status.st_size)}"
    return f"{status.st_size}:{digest_file(path)}"


def _digest_of_samples(path: Path, size: int) -> str:
    """Blocks from the first to the last byte, evenly spread: the time of change stands for the rest."""
    places = [number * (size - _SAMPLE) // (_SAMPLES - 1) for number in range(_SAMPLES)]
    with path.open("rb") as file:
        return digest_bytes(b"".join(os.pread(file.fileno(), _SAMPLE, place) for place in places))


def size_of(kept: str) -> int:
    """How many bytes a file had when it was marked by its whole content."""
    return int(kept.partition(":")[0])


def _files(paths: RunPaths) -> Iterator[tuple[str, Path]]:
    left_out = {path.name for path in (paths.ledger, paths.record)}
    for listing in walk(paths.root):
        if listing.too_deep:
            yield _name(listing.folder), paths.root / listing.folder
        for name in listing.others:
            relative = listing.folder / name
            if len(relative.parts) > 1 or name not in left_out:
                yield _name(relative), paths.root / relative


def _name(relative: Path) -> str:
    """Text for a name of any bytes; different names give different texts."""
    return os.fsencode(relative).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
