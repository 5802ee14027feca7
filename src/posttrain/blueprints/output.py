"""Where the output of a command goes: the log and the session's terminal. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from posttrain.blueprints.stamping import LineStamper


class Output:
    """The log file and, where there is one, the terminal of the session."""

    def __init__(self, log: Path) -> None:
        self._file = log.open("ab", buffering=0)
        self._stamper = LineStamper()
        self._terminal = _terminal()
        self.lost = 0
        self.last_at = time.time()
        self.bytes = 0

    def take(self, descriptor: int) -> None:
        """Move what is there; never waits, neither for the command nor for the terminal."""
        while True:
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self.bytes += len(data)
            self.last_at = time.time()
            self._write(self._stamper.feed(data, now=self.last_at))
            self._show(data)

    def say(self, text: str) -> None:
        """A line of our own, marked as such."""
        line = f"[posttrain] {text}\n".encode()
        self._write(self._stamper.flush(now=time.time()) + self._stamper.feed(line, now=time.time()))
        self._show(line)

    def close(self) -> None:
        self._write(self._stamper.flush(now=time.time()))
        self._file.close()

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:  # a full disk must not end the experiment
            self.lost += len(data)

    def _show(self, data: bytes) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError):  # full (Ctrl-S, nobody reads) or gone
                os.write(self._terminal, data)


def _terminal() -> int | None:
    """The session's terminal, opened anew so that writing to it never waits."""
    if not sys.stdout.isatty():
        return None
    try:
        return os.open(os.ttyname(1), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
