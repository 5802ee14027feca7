"""Reading what an agent left in its workspace as texts: regular files only, no links, within limits."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from posttrain.infra.walking import walk
from posttrain.reports.audit import Document, Mention

_WEIGHTS = re.compile(r".*\.(?:safetensors|bin|pt|pth|ckpt|gguf|onnx)|(?:tokenizer|vocab|merges).*")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_FEW_ZEROS = 0.02
"""Share of zero bytes that a text may have."""
_RUN = re.compile(rb"[\x09\x0a\x0d\x20-\x7e\x80-\xff]{16,}")
"""Text inside other formats (arrow tables, pickles), where it is not packed."""
_LINE = 300
_MOST_MENTIONS = 100


@dataclass(frozen=True)
class Limits:
    """How far is read; what lies beyond is listed as unread."""

    file_bytes: int = 64 << 20
    total_bytes: int = 128 << 20
    files: int = 20_000


@dataclass
class Left:
    """What was read, and what was not."""

    files: int = 0
    bytes: int = 0
    unread: list[str] = field(default_factory=list)


def documents(root: Path, *, skip: frozenset[str], limits: Limits, left: Left) -> Iterator[Document]:
    """The texts below `root`, data before logs; top-level names in `skip` were not the agent's."""
    for name, folder, size in _ordered(root, skip=skip, limits=limits, left=left):
        if size > limits.file_bytes or left.bytes + size > limits.total_bytes:
            left.unread.append(f"{name} ({size:,} bytes)")
            continue
        raw = _read(folder, Path(name).name, size)
        if raw is None:
            left.unread.append(name)
            continue
        left.files += 1
        left.bytes += len(raw)
        for part, content in _unpacked(name, raw, limits.file_bytes):
            text = _as_text(content)
            if text is None:
                left.unread.append(part)
            else:
                yield Document(part, text)


def _ordered(
    root: Path, *, skip: frozenset[str], limits: Limits, left: Left
) -> Iterator[tuple[str, Path, int]]:
    """(name below root, folder, size) of regular files: code and data first, then the rest, logs last."""
    found: list[tuple[int, str, Path, int]] = []
    for listing in walk(root):
        relative, top = listing.folder, listing.folder == Path()
        if listing.too_deep:
            left.unread.append(f"{relative.as_posix()} (too deep)")
        if top:
            listing.folders[:] = [name for name in listing.folders if name not in skip]
        for name in listing.others:
            shown = (relative / name).as_posix()
            if (top and name in skip) or _WEIGHTS.fullmatch(name):
                continue
            status = os.lstat(root / relative / name)
            if not stat.S_ISREG(status.st_mode):
                left.unread.append(f"{shown} (no regular file)")
                continue
            rank = 2 if name.endswith(".log") else 0 if shown.startswith("code/") else 1
            found.append((rank, shown, root / relative, status.st_size))
            if len(found) > limits.files:
                left.unread.append(f"more than {limits.files} files")
                yield from ((shown, folder, size) for _, shown, folder, size in sorted(found))
                return
    yield from ((shown, folder, size) for _, shown, folder, size in sorted(found))


def _read(folder: Path, name: str, size: int) -> bytes | None:
    """The content of a regular file, a link not followed; None if it is none any more."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return file.read(size)
    except OSError:
        return None


def _unpacked(name: str, raw: bytes, most: int) -> Iterator[tuple[str, bytes | None]]:
    """The file itself, or what a compressed one holds; None for what cannot be unpacked."""
    opener = _OPENERS.get(Path(name).suffix)
    if opener is not None:
        yield name, _content(partial(opener, BytesIO(raw)), most)
    elif raw[:4] == b"PK\x03\x04":
        yield from _zipped(name, raw, most)
    else:
        yield name, raw


def _zipped(name: str, raw: bytes, most: int) -> Iterator[tuple[str, bytes | None]]:
    try:
        with zipfile.ZipFile(BytesIO(raw)) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield f"{name}:{entry.filename}", _content(partial(archive.open, entry), most)
    except (zipfile.BadZipFile, OSError, ValueError):
        yield name, None


def _content(unpack: Callable[[], IO[bytes]], most: int) -> bytes | None:
    """The first bytes of what a packed file holds; None if it is damaged or of an unknown kind."""
    try:
        with unpack() as file:
            return file.read(most)
    except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, lzma.LZMAError, zlib.error):
        return None


def _as_text(raw: bytes | None) -> str | None:
    """The content as text; of other formats the runs of text in them, None if there are next to none."""
    if raw is None:
        return None
    if raw[:4] == b"PAR1":
        return None  # its pages are packed
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", "replace")
    if raw.count(0) <= _FEW_ZEROS * len(raw):
        return raw.decode("utf-8", "replace")
    return b"\n".join(_RUN.findall(raw)).decode("utf-8", "replace")


def mentions(document: Document, forbidden: re.Pattern[str]) -> Iterator[Mention]:
    """Places where a text speaks of a forbidden path or host."""
    for count, match in enumerate(forbidden.finditer(document.text)):
        if count >= _MOST_MENTIONS:
            return
        begin = document.text.rfind("\n", 0, match.start()) + 1
        end = document.text.find("\n", match.end())
        line = document.text[begin : end if end >= 0 else None].strip()
        yield Mention(
            what=match[0],
            file=document.name,
            line=document.text.count("\n", 0, match.start()) + 1,
            text=line[:_LINE],
        )
