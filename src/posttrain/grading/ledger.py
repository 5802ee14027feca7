"""The append-only record of a run: one writer, one durable line a row, each chained to the line before.

The chain proves that a ledger agrees with itself; that it is the one which was written needs a head hash
kept elsewhere (`verify(path, head=…)`).
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from posttrain.core.errors import LedgerError, StorageFull
from posttrain.core.grading import LedgerRow
from posttrain.infra.digests import digest_bytes
from posttrain.infra.files import sync_folder

RowKind = Literal[
    "opened",
    "baseline",
    "control",
    "started",
    "accepted",
    "copied",
    "graded",
    "stopped",
    "selected",
    "tested",
    "closed",
    "resumed",
    "verdict",
    "event",
]
FIRST = "0" * 64
"""What the first row names as the hash of the line before it."""


def utc_now() -> str:
    """Now, ISO 8601 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Chain:
    """What is known of a ledger whose every line was checked."""

    head: str
    """BLAKE3 of the last line; 64 zeros when there is none."""
    count: int
    size: int
    """Bytes of all complete lines."""
    torn: bytes = b""
    """What follows the last line end: a write that a crash cut off."""


class Ledger:
    """The writer of one ledger. Opening checks the whole chain; a context manager closes it.

    An incomplete last line is moved to `torn` and an `event` row says so. Any other disagreement raises
    LedgerError, and so does a second writer. `append` may be called from any thread.
    """

    def __init__(self, path: Path, *, torn: Path, now: Callable[[], str] = utc_now) -> None:
        self._path = path
        self._now = now
        self._one_at_a_time = threading.Lock()  # a row names the hash of the row before it
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            chain = _check(path.read_bytes())
            self._head, self._count, self._size = chain.head, chain.count, chain.size
            sync_folder(path.parent)
            if chain.torn:
                self._set_aside(chain.torn, torn)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def head(self) -> str:
        return self._head

    @property
    def count(self) -> int:
        return self._count

    def append(self, kind: RowKind, data: Mapping[str, Any] | BaseModel) -> LedgerRow:
        """Add one row; when this returns the row survives a power cut.

        Raises StorageFull when the disk does not take it (the ledger is then as before) and LedgerError
        when it was closed.
        """
        plain = data.model_dump(mode="json") if isinstance(data, BaseModel) else dict(data)
        with self._one_at_a_time:
            if self._file < 0:
                raise LedgerError(f"{self._path} is closed")
            row = LedgerRow(seq=self._count, time=self._now(), kind=kind, data=plain, prev=self._head)
            line = _encode(row)
            self._write(line)
            self._head, self._count, self._size = digest_bytes(line), self._count + 1, self._size + len(line)
        return row

    def rows(self) -> tuple[LedgerRow, ...]:
        """All rows so far, read from the file."""
        with self._one_at_a_time:
            return read_rows(self._path)

    def close(self) -> None:
        """Give up the lock; safe to call twice."""
        with self._one_at_a_time:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LedgerError(f"{self._path} is being written by another process") from error

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes written")
            os.fsync(self._file)
        except OSError as error:
            self._take_back()
            raise StorageFull(f"{self._path.name} could not be written: {error}") from error

    def _take_back(self) -> None:
        """Half a row must not stand before the next one; if it can't be removed, there is no next one."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError as error:
            os.close(self._file)
            self._file = -1
            raise LedgerError(f"{self._path.name} ends in half a row: {error}") from error

    def _set_aside(self, rest: bytes, torn: Path) -> None:
        """Keep the cut line first, so that dying here at worst keeps it twice."""
        keep = os.open(torn, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(keep, "ab") as file:
            file.write(rest + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.ftruncate(self._file, self._size)
        self.append("event", {"event": "torn line set aside", "bytes": len(rest), "file": torn.name})


def verify(path: Path, head: str | None = None) -> Chain:
    """Check every line of a ledger; with `head`, also that it ends where it once did. Writes nothing.

    Raises LedgerError naming the first line that does not fit. An incomplete last line is an error here.
    """
    try:
        chain = _check(path.read_bytes())
    except FileNotFoundError as error:
        raise LedgerError(f"no ledger at {path}") from error
    if chain.torn:
        raise LedgerError(f"line {chain.count + 1}: incomplete")
    if head is not None and chain.head != head:
        raise LedgerError(f"the head is {chain.head}, expected {head}")
    return chain


def read_rows(path: Path) -> tuple[LedgerRow, ...]:
    """The complete rows of a ledger, in order, with the chain not checked."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return tuple(_decode(line, number) for number, line in enumerate(lines, start=1))


def _check(content: bytes) -> Chain:
    *lines, torn = content.split(b"\n")
    prev = FIRST
    for number, text in enumerate(lines):
        row = _decode(text, number + 1)
        if row.seq != number:
            raise LedgerError(f"line {number + 1}: numbered {row.seq}")
        if row.prev != prev:
            raise LedgerError(f"line {number + 1}: does not follow from the line before it")
        prev = digest_bytes(text + b"\n")
    return Chain(head=prev, count=len(lines), size=len(content) - len(torn), torn=torn)


def _encode(row: LedgerRow) -> bytes:
    """One line. A lone surrogate (from a file name) becomes its JSON escape."""
    plain = row.model_dump(mode="json")
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _decode(line: bytes, number: int) -> LedgerRow:
    try:
        return LedgerRow.model_validate(json.loads(line))
    except (ValueError, RecursionError, ValidationError) as error:
        raise LedgerError(f"line {number}: not a ledger row") from error
