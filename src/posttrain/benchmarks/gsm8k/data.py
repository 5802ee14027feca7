"""GSM8K: the official training and test splits, as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.benchmarks.rows import renamed
from posttrain.infra.files import write_jsonl

_FIELDS = {"question": "question", "answer": "answer"}


def prepare(target: Path, *, source: Any) -> None:
    for split in ("train", "test"):
        rows = source.rows("openai/gsm8k", "main", split)
        write_jsonl(target / f"{split}.jsonl", renamed(rows, _FIELDS))
