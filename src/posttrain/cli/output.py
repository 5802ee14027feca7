"""How commands print: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from posttrain.core.runs import RunRecord


def print_json(value: Any) -> None:
    """One JSON document on standard output; models become plain data."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table: boxes and colours on a terminal, else aligned plain text of full width, a line a row."""
    lines = [list(row) for row in rows]
    if not sys.stdout.isatty():
        _print_plain(columns, lines, right)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    Console().print(table)


def _print_plain(columns: Sequence[str], lines: list[list[str]], right: Sequence[str]) -> None:
    whole = [list(columns), *lines]
    widths = [max(len(line[index]) for line in whole) for index in range(len(columns))]
    for line in whole:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        print("  ".join(cells).rstrip())


def points(value: float | None) -> str:
    """A score or a difference's size, with one decimal; empty for None."""
    return "" if value is None else f"{value:.1f}"


def gain(value: float | None, interval: tuple[float | None, float | None] | None = None) -> str:
    """A signed difference, with the ends of its 95 % interval where there is one."""
    if value is None:
        return ""
    low, high = interval or (None, None)
    ends = f" [{low:+.1f}, {high:+.1f}]" if low is not None and high is not None else ""
    return f"{value:+.1f}{ends}"


def trained_and_prompted(record: RunRecord) -> str:
    """The gain of training beside what a prompt alone gives the untouched base, or that nobody knows it."""
    trained = "not scored" if record.result is None else f"{record.result.improvement.value:+.1f}"
    control = record.format_control
    if control is None:
        return f"training {trained}, a prompt alone: not measured"
    prompted = gain(control.improvement.value, control.improvement.ci95)
    return f"training {trained}, a prompt alone {prompted} ({control.task})"


def printable(text: str) -> str:
    """Text of others without control characters that could take over a terminal."""
    kept = {"\n", "\t"}
    return "".join(char if char.isprintable() or char in kept else "�" for char in text)


def one_line(text: str) -> str:
    """The same where a line break could pass for a line of ours."""
    return printable(" ".join(text.split()))


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"posttrain: {text}", file=sys.stderr)
