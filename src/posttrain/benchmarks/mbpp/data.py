"""MBPP by its official splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.benchmarks.mbpp_rows import in_split, read_mbpp, with_tests
from posttrain.infra.files import write_jsonl

_FILES = {"train": "train", "val": "validation", "test": "test"}


def prepare(target: Path, *, source: Any) -> None:
    rows = read_mbpp(source)
    for name, split in _FILES.items():
        write_jsonl(target / f"{name}.jsonl", [with_tests(row) for row in rows if in_split(row, split)])
