"""What a command says while it works: lines, and how far it is with rate and ETA."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from posttrain.cli.output import printable
from posttrain.core.engine import Progress
from posttrain.infra.durations import format_duration

_LINE_EVERY_S = 10.0
_PACE_FROM_S = 0.2
"""Items that came faster came in one batch, whose time was over when the first was told."""


class Console:
    """A runs.lab.Terminal on one stream: standard output, or standard error beside a JSON document."""

    def __init__(self, *, beside_json: bool = False) -> None:
        self._stream: TextIO = sys.stderr if beside_json else sys.stdout
        self._above: Callable[[str], None] | None = None

    def say(self, line: str) -> None:
        """One line of progress."""
        text = printable(line.replace("\n", " "))
        if self._above is not None:
            self._above(text)
        else:
            print(text, file=self._stream, flush=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Tell how far something is; called with (done, total) items."""
        if self._stream.isatty():
            with _bar(title, self._stream) as (report, above):
                self._above = above
                try:
                    yield report
                finally:
                    self._above = None
        else:
            with _lines(title, self.say) as report:
                yield report


@contextmanager
def _bar(title: str, stream: TextIO) -> Iterator[tuple[Progress, Callable[[str], None]]]:
    """How to move the bar, and how to write a line above it."""
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    pace = _Pace()
    console = RichConsole(file=stream)
    with RichProgress(*columns, console=console) as bars:
        task = bars.add_task(title, total=None, rate="")

        def report(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total, rate=pace.rate(done))

        yield report, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _lines(title: str, say: Callable[[str], None]) -> Iterator[Progress]:
    """A line at most every ten seconds, and one when all is done."""
    pace = _Pace()
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        told = pace.told(done, total)
        if done < total and time.monotonic() - last < _LINE_EVERY_S:
            return
        last = time.monotonic()
        say(f"{title}: {done} of {total}{told}")

    yield report


class _Pace:
    """How fast items come, counted from the first report: loading a model before it is no item's time."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def rate(self, done: int) -> str:
        """`12.3 items/s`, or nothing as long as it cannot be told."""
        speed = self._speed(done)
        return f"{speed:.1f} items/s" if speed else ""

    def told(self, done: int, total: int) -> str:
        """Rate and, while it goes on, what is left; starts with a comma."""
        speed = self._speed(done)
        if not speed:
            return ""
        left = f", {format_duration((total - done) / speed)} left" if done < total else ""
        return f", {speed:.1f} items/s{left}"

    def _speed(self, done: int) -> float | None:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        started, before = self._first
        if done <= before or now - started < _PACE_FROM_S:
            return None
        return (done - before) / (now - started)
