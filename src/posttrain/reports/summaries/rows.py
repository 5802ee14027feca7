"""Rule 9: summary.jsonl, a line of numbers a round, equal to what summary.md tells."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from posttrain.reports.summaries import told
from posttrain.reports.summaries.findings import Finding
from posttrain.reports.summaries.text import LARGEST, Document, Section
from posttrain.reports.summaries.words import FailureType, TrainType

NAME = "summary.jsonl"
_LONGEST = 100_000
_KINDS: dict[str, tuple[type, ...]] = {
    "iteration": (int,),
    "timestamp": (str,),
    "duration_s": (int, float),
    "status": (str,),
    "exit_code": (int,),
    "score": (int, float, type(None)),
    "improvement": (int, float, type(None)),
    "train_type": (str,),
    "failure_type": (str,),
}
_WORDS = {
    "status": {"success", "failure"},
    "train_type": {kind.value for kind in TrainType},
    "failure_type": {kind.value for kind in FailureType},
}
_OPTIONAL = frozenset({"by"})
_REMEDY = "one JSON object a line with: " + ", ".join(_KINDS)


class Row(NamedTuple):
    """One line that could be read."""

    line: int
    data: dict[str, Any]


def check_rows(raw: bytes | None, document: Document) -> Iterator[Finding]:
    """Faults of summary.jsonl in itself and against the sections of summary.md."""
    if raw is None:
        if document.sections:
            yield _finding(1, None, "summary.jsonl is missing", "append each round to both files")
        return
    if len(raw) > LARGEST:
        yield _finding(1, None, f"larger than {LARGEST >> 20} MiB", "a line holds nine values")
        return
    rows: list[Row] = []
    unread = 0
    for line, text in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not text.strip():
            continue
        try:
            rows.append(Row(line, _object(text)))
        except (ValueError, RecursionError) as error:
            unread += 1
            yield _finding(line, None, f"not a JSON object: {_short(error)}", _REMEDY)
    for row in rows:
        yield from _check_row(row)
    yield from _check_numbers(rows, document, unread=unread)


def _object(text: bytes) -> dict[str, Any]:
    if len(text) > _LONGEST:
        raise ValueError("a line of that length holds more than numbers")
    content = json.loads(text.decode("utf-8"), parse_constant=_no_number)
    if not isinstance(content, dict):
        raise ValueError(f"it is a {type(content).__name__}")  # noqa: TRY004 - one way to say it
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _short(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return str(error)[:100] or type(error).__name__


def _finding(line: int, iteration: int | None, message: str, remedy: str) -> Finding:
    return Finding(file=NAME, line=line, rule="9", iteration=iteration, message=message, remedy=remedy)


def _check_row(row: Row) -> Iterator[Finding]:
    number = row.data.get("iteration")
    iteration = number if isinstance(number, int) else None
    for name, kinds in _KINDS.items():
        value = row.data.get(name)
        if name not in row.data:
            yield _finding(row.line, iteration, f"{name} is missing", _REMEDY)
        elif isinstance(value, bool) or not isinstance(value, kinds):
            yield _finding(row.line, iteration, f"{name}: {value!r:.40} is not what stands there", _REMEDY)
        elif isinstance(value, float) and not math.isfinite(value):
            yield _finding(row.line, iteration, f"{name}: not a finite number", "write null for no score")
        elif name in _WORDS and value not in _WORDS[name]:
            yield _finding(
                row.line, iteration, f"{name}: {value!r:.40}", f"one of {', '.join(sorted(_WORDS[name]))}"
            )
    extra = [name for name, value in row.data.items() if name not in _KINDS and not _is_number(name, value)]
    if extra:
        yield _finding(
            row.line,
            iteration,
            f"{', '.join(extra)[:80]}: texts and metrics do not belong here",
            "keep words in summary.md; metrics.json is computed by the lab",
        )


def _is_number(name: str, value: Any) -> bool:
    """A further number does no harm, but what the lab computes is not told by the agent."""
    return name in _OPTIONAL or (isinstance(value, int | float | type(None)) and name != "metrics")


def _check_numbers(rows: list[Row], document: Document, *, unread: int) -> Iterator[Finding]:
    """Every section has its line, in the same order, and the same values."""
    sections = {section.number: section for section in reversed(document.sections) if section.number}
    seen: dict[Any, int] = {}
    last = 0
    for row in rows:
        number = row.data.get("iteration")
        if not isinstance(number, int) or isinstance(number, bool):
            continue
        if number in seen:
            yield _finding(
                row.line,
                number,
                f"iteration {number} stands in line {seen[number]} already",
                "one line a round",
            )
            continue
        if number < last:
            yield _finding(row.line, number, f"iteration {number} comes after {last}", "append in order")
        seen[number], last = row.line, max(last, number)
        section = sections.get(number)
        if section is None:
            yield _finding(
                row.line, number, f"summary.md has no Iteration {number}", "append each round to both files"
            )
        else:
            yield from _compare(row, section)
    end = rows[-1].line if rows else 1
    missing = [pair for pair in sections.items() if pair[0] not in seen]
    if len(missing) > unread:  # as many lines as could not be read may be theirs
        for number, section in sorted(missing, key=lambda pair: pair[1].line):
            yield _finding(
                end,
                number,
                f"Iteration {number} (summary.md line {section.line}) has no line here",
                "append each round to both files",
            )


def _compare(row: Row, section: Section) -> Iterator[Finding]:
    good, code = told.status(section)
    claimed = told.scores(section)
    data = row.data
    pairs: dict[str, tuple[Any, Any]] = {
        "timestamp": (data.get("timestamp"), section.time and f"{section.time:%Y-%m-%d %H:%M}"),
        "status": (data.get("status"), None if good is None else "success" if good else "failure"),
        "exit_code": (data.get("exit_code"), code),
    }
    kind = told.train_type(section)
    if isinstance(kind, TrainType):
        pairs["train_type"] = (data.get("train_type"), kind.value)
    failures = told.own_failures(section)
    if failures and failures[0] in _WORDS["failure_type"] and data.get("failure_type") not in failures:
        pairs["failure_type"] = (data.get("failure_type"), failures[0])
    for name, (here, there) in pairs.items():
        if there is not None and here is not None and here != there:
            yield _differs(row, name, here, there)
    numbers = {
        "duration_s": None if section.duration_s is None else told.Number(section.duration_s, 0.5),
        "score": claimed.score,
        "improvement": claimed.improvement,
    }
    for name, number in numbers.items():
        here = data.get(name)
        if name != "duration_s" and name not in claimed.missing and (number is None) != (here is None):
            yield _differs(row, name, here, None if number is None else number.value)
        elif number is not None and _plain_number(here) and not number.matches(float(here or 0.0)):
            yield _differs(row, name, here, number.value)


def _plain_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _differs(row: Row, name: str, here: Any, there: Any) -> Finding:
    number = row.data.get("iteration")
    shown = "no score" if there is None else there
    return _finding(
        row.line, number, f"{name} is {here!r:.40}, summary.md says {shown}", "the same values in both files"
    )
