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


class Console:
    """A runs.lab.Terminal on one stream: standard output, or standard error beside a JSON document."""

    def __init__(self, *, beside_json: bool = False) -> None:
        self._stream: TextIO = sys.stderr if beside_json else sys.stdout

    def say(self, line: str) -> None:
        """One line of progress."""
        print(printable(line), file=self._stream, flush=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Tell how far something is; called with (done, total) items."""
        if self._stream.isatty():
            with _bar(title, self._stream) as report:
                yield report
        else:
            with _lines(title, self.say) as report:
                yield report


@contextmanager
def _bar(title: str, stream: TextIO) -> Iterator[Progress]:
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
    started = time.monotonic()
    with RichProgress(*columns, console=RichConsole(file=stream)) as bars:
        task = bars.add_task(title, total=None, rate="")

        def report(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total, rate=_rate(done, time.monotonic() - started))

        yield report


@contextmanager
def _lines(title: str, say: Callable[[str], None]) -> Iterator[Progress]:
    """A line at most every ten seconds, and one when all is done."""
    started = time.monotonic()
    last = started

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done < total and now - last < _LINE_EVERY_S:
            return
        last = now
        say(f"{title}: {done} of {total}{_pace(done, total, now - started)}")

    yield report


def _pace(done: int, total: int, seconds: float) -> str:
    if done <= 0 or seconds <= 0:
        return ""
    if done >= total:
        return f" in {seconds:.1f} s, {_rate(done, seconds)}"
    return f", {_rate(done, seconds)}, {format_duration((total - done) * seconds / done)} left"


def _rate(done: int, seconds: float) -> str:
    return f"{done / seconds:.1f} items/s" if done > 0 and seconds > 0 else ""
