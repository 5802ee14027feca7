"""Writing small task folders for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posttrain.core.errors import UsageError

DATA_PY = """
import json
from pathlib import Path

def prepare(target, *, source):
    for split in {splits!r}:
        rows = list(source.rows("org/quiz", None, split))
        (target / f"{{split}}.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
"""


def question_rows(count: int, *, start: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(start, start + count)]


def task_folder(root: Path, name: str = "quiz", **fields: Any) -> Path:
    """A folder with a manifest; `data` as text of data.py, `rows` as files in data/."""
    folder = root / name
    folder.mkdir(parents=True)
    data: str | None = fields.pop("data", None)
    rows: dict[str, list[Any]] = fields.pop("rows", {})
    manifest = {"title": "Quiz", "evaluator": "numeric", **fields}
    (folder / "benchmark.yaml").write_text(yaml.safe_dump(manifest), "utf-8")
    (folder / "description.md").write_text("# Quiz\n", "utf-8")
    if data is not None:
        (folder / "data.py").write_text(data, "utf-8")
    for split, lines in rows.items():
        path = folder / "data" / f"{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines), "utf-8")
    return folder


@dataclass
class ListedSource:
    """A data source that holds its rows; counts how often it was asked."""

    splits: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def rows(self, dataset: str, config: str | None, split: str) -> Iterator[dict[str, Any]]:
        self.asked.append(split)
        if split not in self.splits:
            raise UsageError(f"data set {dataset}: no split {split}; put it at /data/{split}.jsonl")
        return iter(self.splits[split])

    def file(self, dataset: str, name: str) -> Path:
        raise UsageError(f"data set {dataset}: no file {name}")


def texts(rows: Iterable[Any]) -> list[str]:
    return [row["question"] for row in rows]
