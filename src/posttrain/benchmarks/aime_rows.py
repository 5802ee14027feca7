"""AIME 2024 and 2025: one year is tested, the other validates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.benchmarks.rows import either, first_field, read_lines
from posttrain.infra.files import write_jsonl

_HUB = {"aime24": ("HuggingFaceH4/aime_2024", "train"), "aime25": ("math-ai/aime25", "test")}
_INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def prepare(target: Path, *, source: Any) -> None:
    """Both years as `aime24.jsonl` and `aime25.jsonl`; the manifest of a task says which is tested."""
    for year in _HUB:
        write_jsonl(target / f"{year}.jsonl", [_row(row) for row in _read(source, year)])


def _read(source: Any, year: str) -> list[dict[str, Any]]:
    dataset, split = _HUB[year]
    return either(
        lambda: list(source.rows(dataset, None, split)),
        lambda: read_lines(source.file("aime", f"{year}.jsonl")),
    )


def _row(row: dict[str, Any]) -> dict[str, str]:
    problem = first_field(row, ("problem", "question"))
    return {"question": problem.removesuffix(_INSTRUCTION), "answer": str(row["answer"])}
