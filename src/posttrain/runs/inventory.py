"""What every file of a run held when it was closed, so that a later edit of any of them can be named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from posttrain.core.paths import RunPaths
from posttrain.infra.digests import digest_bytes, digest_file

READ_WHOLE = 16 << 20
"""Larger files below the workspace are the agent's checkpoints: size and time stand for their content."""


def take_inventory(paths: RunPaths) -> dict[str, str]:
    """`relative name -> mark` for all files that are final when a run closes.

    Left out: the ledger (it proves itself), the lock, record.json and run.log (written after this; a
    mark of what run.log held until now is kept under its name).
    """
    return {name: mark(path) for name, path in sorted(_files(paths))}


def mark(path: Path) -> str:
    """What stands for the content of one path: a digest, a link's target, or its kind."""
    if path.is_symlink():
        return f"link:{digest_bytes(os.fsencode(path.readlink()))}"
    if not path.is_file():
        return "missing" if not path.exists() else "special"
    status = path.stat()
    if status.st_size > READ_WHOLE and "workspace" in path.parts:
        return f"stamp:{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
    return f"{status.st_size}:{digest_file(path)}"


def mark_of_prefix(path: Path, size: int) -> str:
    """The mark that `path` had while it was `size` bytes long."""
    with path.open("rb") as file:
        return f"{size}:{digest_bytes(file.read(size))}"


def _files(paths: RunPaths) -> Iterator[tuple[str, Path]]:
    left_out = {path.name for path in (paths.ledger, paths.lock, paths.record)}
    for folder, folders, files in os.walk(paths.root):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            path = Path(folder) / name
            relative = path.relative_to(paths.root)
            if len(relative.parts) > 1 or name not in left_out:
                yield os.fsencode(relative).decode("utf-8", "backslashreplace"), path
