"""What OpenCompass made of the answers, read so that only the number that was asked for can be a score.

The tool exits with 0 when inference and evaluation have failed; then its tables hold `-`. Its summary is
laid out for people: several metrics, models and modes stand side by side. So the number comes from the
result of each data set, by the name of the metric; predictions and judged items are counted; and
the summary's cell under the same names must say the same.
"""

from __future__ import annotations

import ast
import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.core.errors import InfrastructureError
from posttrain.core.scores import Item, ItemResult
from posttrain.evaluators.opencompass.inputs import MODEL

RULE = "opencompass"
_LARGEST_FILE = 1 << 30
_SHOWN = 200


class UnreadResult(InfrastructureError):
    """The tool's files do not hold the number that was asked for; there is no score."""


@dataclass(frozen=True)
class Subset:
    """One data set of the configuration and the items it was asked."""

    abbr: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Said:
    """One prediction: the last words of what was asked, and the text as the tool received it."""

    question: str
    text: str


@dataclass(frozen=True)
class SubsetResult:
    """What came of one data set."""

    results: tuple[ItemResult, ...]
    predictions: tuple[Said, ...]
    """In the order of the items."""
    by_item: bool
    """False: the tool judged no single items, and each has the data set's share."""


def read_results(folder: Path, subsets: Sequence[Subset], *, metric: str) -> tuple[SubsetResult, ...]:
    """The results of one run of the tool, whose folder is `out/<time>`; UnreadResult says what is missing."""
    table = _summary(folder)
    return tuple(_subset(folder, subset, table, metric=metric) for subset in subsets)


def newest_run(out: Path) -> Path:
    """The one folder that a run made below `out`."""
    found = sorted(path for path in out.iterdir() if path.is_dir()) if out.is_dir() else []
    if len(found) != 1:
        raise UnreadResult(f"OpenCompass left {len(found)} result folders, one is expected")
    return found[0]


def configured(folder: Path) -> tuple[str, ...]:
    """The names of all data sets in the configuration as the tool wrote it down before it began."""
    found = sorted((folder / "configs").glob("*.py"))
    if len(found) != 1:
        raise UnreadResult(f"OpenCompass left {len(found)} configurations, one is expected")
    try:
        tree = ast.parse(_text(found[0]))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadResult(f"OpenCompass: its configuration cannot be read: {error}") from error
    lists = [
        node.value.elts
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.List)
        and any(isinstance(target, ast.Name) and target.id == "datasets" for target in node.targets)
    ]
    if len(lists) != 1:
        raise UnreadResult(f"OpenCompass: its configuration has {len(lists)} lists of data sets")
    return tuple(_abbr(each) for each in lists[0])


def _abbr(data_set: ast.expr) -> str:
    """The name of a data set as `dict(…)` or `{…}`; one without a name could be missed without a word."""
    pairs: list[tuple[str | None, ast.expr]] = []
    if isinstance(data_set, ast.Call):
        pairs = [(keyword.arg, keyword.value) for keyword in data_set.keywords]
    elif isinstance(data_set, ast.Dict):
        pairs = [
            (str(key.value), value)
            for key, value in zip(data_set.keys, data_set.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
    for name, value in pairs:
        if name == "abbr" and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    raise UnreadResult("OpenCompass: a data set of its configuration has no abbr")


def _subset(folder: Path, subset: Subset, table: _Table, *, metric: str) -> SubsetResult:
    predictions = _predictions(folder, subset)
    result = _load(folder / "results" / MODEL / f"{subset.abbr}.json")
    value = _number(result, subset, metric)
    told = table.value(subset.abbr, metric)
    if abs(told - value) > 0.005 + 1e-9:
        raise UnreadResult(
            f"OpenCompass: {subset.abbr}: {metric} is {value} in its result, {told} in its summary"
        )
    judged = _judged(result.get("details"), subset)
    if judged is None:
        results = tuple(_item(item, value / 100) for item in subset.items)
        return SubsetResult(results, predictions, by_item=False)
    share = 100 * sum(right for right, _ in judged) / len(judged)
    if abs(share - value) > 0.005:
        raise UnreadResult(
            f"OpenCompass: {subset.abbr}: {metric} is {value:.2f}, its judged items give {share:.2f}"
        )
    pairs = zip(subset.items, judged, strict=True)
    results = tuple(_item(item, float(right), extracted) for item, (right, extracted) in pairs)
    return SubsetResult(results, predictions, by_item=True)


def _item(item: Item, value: float, extracted: str | None = None) -> ItemResult:
    return ItemResult(id=item.id, value=value, extracted=extracted, rule=RULE, stratum=item.stratum)


def _predictions(folder: Path, subset: Subset) -> tuple[Said, ...]:
    rows = _load(folder / "predictions" / MODEL / f"{subset.abbr}.json")
    names = [str(index) for index in range(len(subset.items))]
    if sorted(rows) != sorted(names):
        raise UnreadResult(f"OpenCompass: {subset.abbr}: {len(rows)} predictions for {len(names)} items")
    said = [_said(rows[name]) for name in names]
    missing = [name for name, each in zip(names, said, strict=True) if each is None]
    if missing:
        raise UnreadResult(f"OpenCompass: {subset.abbr}: prediction {missing[0]} is no text")
    return tuple(each for each in said if each is not None)


def _said(row: Any) -> Said | None:
    """What a row of the predictions says; None if it has no text, or no question."""
    if not isinstance(row, dict) or not isinstance(row.get("prediction"), str):
        return None
    asked = row.get("origin_prompt")
    if isinstance(asked, list) and asked and isinstance(asked[-1], dict):
        asked = asked[-1].get("prompt", asked[-1].get("content"))
    return Said(asked, row["prediction"]) if isinstance(asked, str) else None


def _number(result: Mapping[str, Any], subset: Subset, metric: str) -> float:
    """The named metric in points; no neighbour of it will do."""
    if "error" in result:
        raise UnreadResult(f"OpenCompass: {subset.abbr}: {str(result['error'])[:_SHOWN]}")
    if metric not in result:
        known = ", ".join(name for name in result if name != "details") or "nothing"
        raise UnreadResult(f"OpenCompass: {subset.abbr}: no {metric!r} in its result, which has {known}")
    value = result[metric]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadResult(f"OpenCompass: {subset.abbr}: {metric} is {value!r:.80}, no number")
    if not 0 <= value <= 100:  # neither is nan
        raise UnreadResult(f"OpenCompass: {subset.abbr}: {metric} is {value!r:.80}, not one from 0 to 100")
    return float(value)


def _judged(details: Any, subset: Subset) -> list[tuple[bool, str | None]] | None:
    """Right or wrong of each item and what was read; None where the tool judged no single items."""
    rows: list[Any]
    if isinstance(details, dict):
        rows = [details.get(str(index)) for index in range(len(details))]
    elif isinstance(details, list):
        rows = details
    else:
        return None
    right = [_only(row.get("correct")) if isinstance(row, dict) else None for row in rows]
    if not all(isinstance(each, bool) for each in right):
        return None
    if len(rows) != len(subset.items):
        raise UnreadResult(f"OpenCompass: {subset.abbr}: {len(rows)} judged items of {len(subset.items)}")
    return [(bool(each), _extracted(row)) for each, row in zip(right, rows, strict=True)]


def _extracted(row: Mapping[str, Any]) -> str | None:
    text = _only(row.get("pred", row.get("predictions")))
    return text if isinstance(text, str) else None


def _only(value: Any) -> Any:
    """The one value of a list of one: the tool lists an item's samples."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


class _Table:
    """The summary: one row a data set, metric and mode; one column a model."""

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        if not rows or list(rows[0][:4]) != ["dataset", "version", "metric", "mode"]:
            raise UnreadResult("OpenCompass: its summary has another form than known")
        columns = [place for place, name in enumerate(rows[0]) if name == MODEL]
        if len(columns) != 1:
            raise UnreadResult(f"OpenCompass: its summary has {len(columns)} columns {MODEL!r}")
        self._column = columns[0]
        self._rows = rows[1:]

    def value(self, abbr: str, metric: str) -> float:
        """The cell of a data set and metric under generation."""
        about = [row for row in self._rows if row and row[0] == abbr]
        found = [row for row in about if len(row) > self._column and row[2] == metric and row[3] == "gen"]
        if len(found) != 1:
            cells = "; ".join(",".join(row[2:]) for row in about) or "nothing"
            raise UnreadResult(
                f"OpenCompass: {abbr}: its summary has {len(found)} rows of {metric!r} by generation; "
                f"it has {cells}"
            )
        cell = found[0][self._column]
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UnreadResult(f"OpenCompass: {abbr}: its summary says {cell!r} for {metric}")
        return value


def _summary(folder: Path) -> _Table:
    found = sorted((folder / "summary").glob("summary_*.csv"))
    if len(found) != 1:
        raise UnreadResult(f"OpenCompass left {len(found)} summaries, one is expected")
    try:
        return _Table(list(csv.reader(_text(found[0]).splitlines())))
    except csv.Error as error:
        raise UnreadResult(f"OpenCompass: its summary is no table: {error}") from error


def _load(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise UnreadResult(
            f"OpenCompass: {path.parent.parent.name}/{path.name} is not JSON: {error}"
        ) from error
    if not isinstance(data, dict):
        raise UnreadResult(f"OpenCompass: {path.parent.parent.name}/{path.name} is no JSON object")
    return data


def _text(path: Path) -> str:
    """A file of the tool's; a link or anything else that is no plain file is none of its results."""
    name = f"{path.parent.parent.name}/{path.name}"
    if path.is_symlink() or not path.is_file():
        raise UnreadResult(f"OpenCompass left no {name}")
    if path.stat().st_size > _LARGEST_FILE:
        raise UnreadResult(f"OpenCompass: {name} is larger than {_LARGEST_FILE >> 30} GiB")
    return path.read_text("utf-8-sig", "replace")
