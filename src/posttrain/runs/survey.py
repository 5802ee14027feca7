"""Many runs at once: the rows of results files together with what the runs' folders tell."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunRecord, RunRequest
from posttrain.infra.digests import digest_value
from posttrain.reports.comparison import Entry, Facts
from posttrain.reports.results import ResultRow
from posttrain.runs.words import read_word

_ITEMS_DIGITS = 16
_T = TypeVar("_T", bound=BaseModel)


def survey(lab: LabPaths, rows: Iterable[ResultRow]) -> tuple[Entry, ...]:
    """The runs of `rows`, each once: of several rows of one run the last counts.

    AutoRL-Bench names runs by the second, so that two agents may share a name.
    """
    once = {(row.run_id, row.task, row.agent, row.base_model): row for row in rows}
    return tuple(Entry(row, _facts(lab, row)) for row in once.values())


def _facts(lab: LabPaths, row: ResultRow) -> Facts:
    """What the folder of a run tells; a damaged one tells less and hides no other run."""
    paths = None if "/" in row.run_id or set(row.run_id) & set("*?[") else lab.find_run(row.run_id)
    if paths is None:
        return Facts()
    request, record = _read(paths.request, RunRequest), _read(paths.record, RunRecord)
    word = read_word(paths)
    result = record.result if record else None
    return Facts(
        timeout_s=request.timeout_s if request else None,
        items=_items(paths),
        marks=record.marks if record else None,
        verdicts=record.verdicts if record else {},
        overfit=result.overfit if result else None,
        format_control=record.format_control if record else None,
        accepted=word.accepted if word else None,
        why=word.why if word else "",
    )


def _items(paths: RunPaths) -> str:
    """Digest of the reported items by the plan, which another version may have written otherwise."""
    try:
        ids = json.loads(paths.plan.read_bytes())["task"]["test"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return digest_value(ids)[:_ITEMS_DIGITS]


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
