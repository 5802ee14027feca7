"""Reads a growing log in order, once, and hands every line to those who look for something in it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.blueprints.machine import Machine

_CHUNK = 1 << 22
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] ")
OURS = "[posttrain] "


@dataclass(frozen=True)
class LogLine:
    """One line without its stamp."""

    number: int
    at: float | None
    """Unix seconds, where the line has a stamp."""
    text: str


Sink = Callable[[LogLine], None]


class LogReader:
    """Follows one file. Lines of our own wrapper are left out."""

    def __init__(self, path: Path, *, machine: Machine, sinks: Sequence[Sink]) -> None:
        self._path = path
        self._machine = machine
        self._sinks = sinks
        self._offset = 0
        self._rest = b""
        self._number = 0
        self.last_line = ""

    def advance(self) -> None:
        """Read what has been added; an unfinished last line waits for its end."""
        while data := self._machine.read(self._path, offset=self._offset, limit=_CHUNK):
            self._offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for raw in lines:
                self._hand_out(raw.decode("utf-8", "replace"))

    def _hand_out(self, text: str) -> None:
        self._number += 1
        stamp = _STAMP.match(text)
        if stamp:
            text = text[stamp.end() :]
        if text.startswith(OURS):
            return
        if text.strip():
            self.last_line = text
        line = LogLine(self._number, _unix(stamp[1]) if stamp else None, text)
        for sink in self._sinks:
            sink(line)


def _unix(stamp: str) -> float:
    return time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S"))
