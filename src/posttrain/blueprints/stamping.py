"""Output of a command as log lines with times. Standard library only.

`\\r` ends a line too, as progress bars use it; of their updates at most one a second is kept. Colours and
cursor movements are taken out, and a line that never ends is cut.
"""

from __future__ import annotations

import re
import time

_ENDS = re.compile(rb"\r\n|\n|\r")
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LONGEST = 1 << 16
_BAR_EVERY_S = 1.0


class LineStamper:
    """Bytes in, stamped lines out; keeps the unfinished rest between calls."""

    def __init__(self) -> None:
        self._rest = b""
        self._bar = b""
        self._bar_shown_at = float("-inf")

    def feed(self, data: bytes, *, now: float) -> bytes:
        """The lines that `data` completes, each `[YYYY-MM-DD HH:MM:SS] text`."""
        pending = self._rest + data
        if pending.endswith(b"\r"):  # could be half of \r\n
            pending, held = pending[:-1], b"\r"
        else:
            held = b""
        lines: list[bytes] = []
        start = 0
        for end in _ENDS.finditer(pending):
            self._take(pending[start : end.start()], bar=end.group() == b"\r", now=now, into=lines)
            start = end.end()
        self._rest = pending[start:] + held
        if len(self._rest) > _LONGEST:
            self._take(self._rest, bar=False, now=now, into=lines)
            self._rest = b""
        return _stamp(lines, now)

    def flush(self, *, now: float) -> bytes:
        """What is left at the end of the output."""
        lines: list[bytes] = []
        if self._rest.strip():
            self._take(self._rest.rstrip(b"\r"), bar=False, now=now, into=lines)
        elif self._bar:
            lines.append(self._bar)
        self._rest = self._bar = b""
        return _stamp(lines, now)

    def _take(self, line: bytes, *, bar: bool, now: float, into: list[bytes]) -> None:
        line = _ESCAPES.sub(b"", line)
        if not bar:
            self._bar = b""
            into.append(line)
        elif line.strip() and now - self._bar_shown_at >= _BAR_EVERY_S:
            self._bar_shown_at = now
            self._bar = b""
            into.append(line)
        elif line.strip():
            self._bar = line


def _stamp(lines: list[bytes], now: float) -> bytes:
    if not lines:
        return b""
    stamp = time.strftime("[%Y-%m-%d %H:%M:%S] ", time.localtime(now)).encode()
    return b"".join(stamp + line + b"\n" for line in lines)
