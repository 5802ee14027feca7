"""Signals that end a run: deferred by default, raised only where waiting is safe to leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from posttrain.core.errors import Stopped

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Turns SIGHUP, SIGINT and SIGTERM into `Stopped`, at places of our choosing.

    A signal that arrives inside `interruptible()` raises there at once; anywhere else it waits for the
    next `interruptible()` or `check()`, so that no ledger row and no file is cut in half. SIGHUP that was
    ignored at start (nohup) stays ignored. Must be entered in the main thread.
    After a stop further signals are ignored for good: the process is on its way out, its exit code decided.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._raised = False
        self._depth = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals can only be taken over by the main thread")
        for number in _ENDING:
            previous = signal.getsignal(number)
            if number == signal.SIGHUP and previous == signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous if self.received is None else signal.SIG_IGN)

    def check(self) -> None:
        """Raise Stopped if a signal has come and was not raised yet."""
        if self.received is not None and not self._raised:
            self._raised = True
            raise Stopped(self.received)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal raises at once; what is open there must be closed by `with`."""
        self._depth += 1
        try:
            self.check()
            yield
        finally:
            self._depth -= 1

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        if self._depth:
            self.check()
