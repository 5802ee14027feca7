"""Files that are either whole or not there."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace `path` by `data` in one step; a reader sees the old content or the new one, never a part.

    `durable` syncs file and folder, so the new content survives a power cut.
    """
    raw = data.encode("utf-8") if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_json(path: Path, value: Any, *, mode: int = 0o644, durable: bool = True) -> None:
    """Write a model or plain JSON data, indented, atomically."""
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    write_atomic(path, as_json(data), mode=mode, durable=durable)


def as_json(data: Any) -> str:
    """Plain JSON data as `write_json` writes it."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_jsonl(path: Path, rows: Iterable[Any], *, mode: int = 0o644, durable: bool = True) -> None:
    """Write one JSON document a line, atomically."""
    lines = (
        json.dumps(row.model_dump(mode="json") if isinstance(row, BaseModel) else row, ensure_ascii=False)
        for row in rows
    )
    write_atomic(path, "".join(line + "\n" for line in lines), mode=mode, durable=durable)


def read_jsonl(path: Path) -> Iterator[Any]:
    """The JSON documents of a file, blank lines skipped. ValueError names file and line."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{path}:{number}: not JSON: {error}") from error


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
