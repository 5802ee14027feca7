"""MATH-500: problem and answer, the instruction that some copies carry removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.infra.files import write_jsonl

_INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def prepare(target: Path, *, source: Any) -> None:
    rows = source.rows("HuggingFaceH4/MATH-500", None, "test")
    write_jsonl(
        target / "test.jsonl",
        [
            {"question": row["problem"].removesuffix(_INSTRUCTION), "answer": str(row["answer"])}
            for row in rows
        ],
    )
