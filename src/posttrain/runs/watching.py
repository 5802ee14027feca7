"""Progress of gradings that begin and end while something else runs: one bar or set of lines for each."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from posttrain.core.engine import Progress
from posttrain.runs.lab import Terminal


class Watched:
    """Called with (done, total) by whoever grades; a new grading is known by fewer items done.

    As a context manager it ends what is still shown when the block ends.
    """

    def __init__(self, terminal: Terminal, title: str) -> None:
        self._terminal = terminal
        self._title = title
        self._lock = threading.Lock()
        self._shown = ExitStack()
        self._report: Progress | None = None
        self._done = 0
        self._ended = False

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            if self._ended:
                return
            if self._report is None or done < self._done:
                self._hide()
                self._report = self._shown.enter_context(self._terminal.progress(self._title))
            self._report(done, total)
            self._done = done
            if done >= total:
                self._hide()

    def _hide(self) -> None:
        self._shown.close()
        self._report, self._done = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended = True
            self._hide()
