"""What the data.py files of tasks share: reading rows that may lie in one of two forms."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from posttrain.core.errors import UsageError

_T = TypeVar("_T")


def either(*roads: Callable[[], _T]) -> _T:
    """What the first road that is open leads to; the first one's UsageError if all are closed."""
    closed: UsageError | None = None
    for road in roads:
        try:
            return road()
        except UsageError as error:
            closed = closed or error
    raise closed or UsageError("no road to any rows")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl or .jsonl.gz file."""
    text = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    return [json.loads(line) for line in text.decode("utf-8").split("\n") if line.strip()]


def renamed(rows: Iterable[dict[str, Any]], names: dict[str, str]) -> list[dict[str, Any]]:
    """Rows with only the fields of `names`, under their new names."""
    return [{new: row[old] for old, new in names.items()} for row in rows]


def first_field(row: dict[str, Any], names: Sequence[str]) -> Any:
    """The first of the fields that the row has; data sets spell the same thing differently."""
    for name in names:
        if name in row:
            return row[name]
    raise KeyError(f"none of {', '.join(names)} in a row with {', '.join(row)}")
