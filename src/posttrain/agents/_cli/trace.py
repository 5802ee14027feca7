"""What a tool says, kept twice: trace.jsonl for programs, and a log for people, both live."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

_LONGEST = 2000
"""Characters of one entry in the log; the trace has everything."""
_HIDDEN = "[hidden]"
_TERMINAL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)|[\x00-\x08\x0b-\x1f\x7f]"
)
"""What would move a cursor or change a colour where the log is read."""


class Trace:
    """Appends to both. Values of secrets are replaced wherever they occur."""

    def __init__(self, path: Path, log: TextIO, *, secrets: Iterable[str] = ()) -> None:
        self._file = path.open("a", encoding="utf-8", errors="replace")  # until the process ends
        self._log = log
        self._secrets = tuple(secrets)
        self._lock = threading.Lock()
        self._unfinished = ""

    def event(self, turn: int, **content: Any) -> None:
        """One line of the trace: when, which prompt it belongs to, and the content."""
        line = json.dumps({"t": round(time.time(), 3), "turn": turn, **content}, ensure_ascii=False)
        with self._lock, suppress(OSError):  # a full disk ends the record, not the run
            self._file.write(f"{self._clean(line)}\n")
            self._file.flush()

    def say(self, *entries: str) -> None:
        """Entries of the log."""
        with self._lock:
            self._flush()
            for entry in entries:
                self._write(entry)

    def piece(self, text: str) -> None:
        """A part of an entry that the next piece continues."""
        with self._lock:
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            if any(line.strip() for line in lines):
                self._write("\n".join(lines))

    def _flush(self) -> None:
        if self._unfinished.strip():
            self._write(self._unfinished)
        self._unfinished = ""

    def _write(self, entry: str) -> None:
        text = _TERMINAL.sub("", self._clean(entry.strip()))
        if len(text) > _LONGEST:
            text = (
                f"{text[: _LONGEST // 2]}\n[… {len(text) - _LONGEST} characters …]\n{text[-_LONGEST // 2 :]}"
            )
        first, *rest = text.splitlines() or [""]
        stamp = time.strftime("%H:%M:%S")
        lines = [f"[{stamp}] {first}", *(f"{'':10} {line}" for line in rest)]
        with suppress(OSError):
            print(*lines, sep="\n", file=self._log, flush=True)

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text.encode("utf-8", "replace").decode("utf-8")  # half a character would end the log
