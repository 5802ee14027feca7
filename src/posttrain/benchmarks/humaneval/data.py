"""HumanEval for the test, MBPP in the same form for training and validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.benchmarks.mbpp_rows import as_humaneval, in_split, read_mbpp
from posttrain.benchmarks.rows import either, read_lines
from posttrain.infra.files import write_jsonl

_HUB = "openai/openai_humaneval"
_OPEN_TRAIN = 82
"""Under `open` the first problems are shown, as in AutoRL-Bench."""
_LAST_OF_MORE_VALIDATION = 120


def prepare(target: Path, *, source: Any) -> None:
    problems = [_problem(row) for row in _humaneval(source)]
    mbpp = read_mbpp(source)
    val = [row for row in mbpp if in_split(row, "validation") or _more_validation(row)]
    files = {
        "train": [as_humaneval(row) for row in mbpp if in_split(row, "train")],
        "val": [as_humaneval(row) for row in val],
        "test": problems,
        "open_train": problems[:_OPEN_TRAIN],
        "open_test": problems[_OPEN_TRAIN:],
    }
    for name, rows in files.items():
        write_jsonl(target / f"{name}.jsonl", rows)


def _humaneval(source: Any) -> list[dict[str, Any]]:
    rows = either(
        lambda: list(source.rows(_HUB, None, "test")),
        lambda: read_lines(source.file(_HUB, "HumanEval.jsonl.gz")),
    )
    return sorted(rows, key=lambda row: int(row["task_id"].rsplit("/", 1)[1]))


def _problem(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "question": row["prompt"],
        "answer": row["canonical_solution"],
        "entry_point": row["entry_point"],
        "prefix": row["prompt"],
        "test": row["test"],
        "setup": "",
        "task_id": row["task_id"],
    }


def _more_validation(row: dict[str, Any]) -> bool:
    return in_split(row, "test") and int(row["task_id"]) <= _LAST_OF_MORE_VALIDATION
