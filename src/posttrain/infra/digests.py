"""BLAKE3 digests of values, files and folders. A digest is 64 hexadecimal digits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from blake3 import blake3

from posttrain.core.frozen import canonical_json

_BLOCK = 1 << 20


def digest_bytes(data: bytes) -> str:
    return blake3(data).hexdigest()


def digest_value(value: Any) -> str:
    """Digest of the canonical JSON form of a model or of plain JSON data."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """Digest of a file's bytes, read in blocks of 1 MiB."""
    hasher = blake3()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
    return hasher.hexdigest()


def digest_tree(root: Path, *, skip: Iterable[str] = ("__pycache__",)) -> str:
    """Digest over relative names and contents of all regular files below `root`."""
    skipped = set(skip)
    entries = {
        path.relative_to(root).as_posix(): digest_file(path)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not skipped & set(path.relative_to(root).parts)
    }
    return digest_value(entries)
