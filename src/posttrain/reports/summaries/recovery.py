"""The row that a writer owes who died after the section and before its row."""

from __future__ import annotations

import json
from typing import Any

from posttrain.reports.summaries import told
from posttrain.reports.summaries.text import Section, parse
from posttrain.reports.summaries.words import FailureType, TrainType


def missing_text(markdown: bytes, rows: bytes) -> str:
    """What has to be appended to summary.jsonl so that the last section has its row; mostly nothing.

    A line that was cut off is completed where it is the beginning of that row, else ended.
    """
    document = parse(markdown)
    complete, _, torn = rows.rpartition(b"\n")
    expected = _row(document.sections[-1]) if document.sections else None
    line = None if expected is None else json.dumps(expected, ensure_ascii=False) + "\n"
    if torn:
        begun = line is not None and line.encode().startswith(torn) and not _has(complete, expected)
        if begun and line is not None:
            return line.encode()[len(torn) :].decode("utf-8", "replace")
        return "\n"
    return line if line is not None and not _has(complete, expected) else ""


def _has(rows: bytes, row: dict[str, Any] | None) -> bool:
    """Whether a line of that iteration is there; what cannot be read may be it."""
    for line in rows.splitlines():
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if row is not None and isinstance(content, dict) and content.get("iteration") == row["iteration"]:
            return True
    return False


def _row(section: Section) -> dict[str, Any] | None:
    """The row as the writer makes it; None for a section that it did not write."""
    good, code = told.status(section)
    kind, claimed = told.train_type(section), told.scores(section)
    complete = section.number and section.time and section.duration_s is not None and code is not None
    if (
        not complete
        or good is None
        or not isinstance(kind, TrainType)
        or claimed.missing
        or section.time is None
    ):
        return None
    named = told.own_failures(section)
    known = [word for word in named if word in {kind.value for kind in FailureType}]
    return {
        "iteration": section.number,
        "timestamp": f"{section.time:%Y-%m-%d %H:%M}",
        "duration_s": int(section.duration_s or 0),
        "status": "success" if good else "failure",
        "exit_code": code,
        "score": None if claimed.score is None else claimed.score.value,
        "improvement": None if claimed.improvement is None else claimed.improvement.value,
        "train_type": kind.value,
        "failure_type": known[0] if known else FailureType.UNKNOWN.value,
    }
