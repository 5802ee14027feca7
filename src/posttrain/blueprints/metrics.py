"""Numbers that a run reports about itself: evaluations and training values, from its file and its log.

Evaluations carry the names of the format: pass_n, total_tasks, num_all_success_tasks, num_pass_n_tasks,
task_pass_rate@k, mean_reward, std_reward.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from posttrain.blueprints.logs import LogLine
from posttrain.core.frozen import Frozen

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?nan|[+-]?inf"
_EVALUATION = re.compile(
    r"pass_n|total_tasks|num_all_success_tasks|num_pass_n_tasks|task_pass_rate@\d+(?:-all-pass)?|mean_reward|std_reward"
)
_PAIR = re.compile(
    rf"(?P<name>[A-Za-z_][\w/@.-]*)(?:\([^()]*\))?['\"]?\s*[:=│|]\s*['\"]?(?:np\.\w+\()?(?P<value>{_NUMBER})(?![\w.])(?P<percent>\s?%)?",
    re.IGNORECASE,
)
_STEPS = ("global_steps", "global_step", "training/global_step", "step", "steps", "epoch")
_STEP_TEXT = re.compile(r"@?\s*\bstep\s*[:=]?\s*(\d+)", re.IGNORECASE)
_ALIASES = {"n_tasks": "total_tasks"}
_MOST_ROWS = 2000
_KNOWN = re.compile(
    r"loss|reward|accuracy|acc$|score|kl|entropy|grad_norm|lr$|learning_rate|perplexity|f1|length"
)


class MetricRow(Frozen):
    """Values reported together."""

    step: float | None
    at: float | None = None
    values: dict[str, float] = Field(default_factory=dict)

    @property
    def is_evaluation(self) -> bool:
        return any(_EVALUATION.fullmatch(name) and name != "total_tasks" for name in self.values)


class MetricsReader:
    """Collects rows from log lines; `read_file` takes a validation file as a whole."""

    def __init__(self) -> None:
        self._log_evaluations: list[MetricRow] = []
        self._file_rows: list[MetricRow] = []
        self.training: list[MetricRow] = []
        """All other rows of the log, thinned out where they are many."""

    def __call__(self, line: LogLine) -> None:
        row = parse_row(line.text, at=line.at)
        if row is None:
            return
        if row.is_evaluation:
            self._log_evaluations.append(row)
            return
        self.training.append(row)
        if len(self.training) > _MOST_ROWS:
            del self.training[1:-1:2]

    def read_file(self, text: str) -> None:
        """The current content of `val_print_to_markdown_file_path`."""
        rows = [parse_row(line, at=None) for line in text.splitlines()]
        self._file_rows = [row for row in rows if row is not None and row.is_evaluation]

    @property
    def evaluations(self) -> list[MetricRow]:
        """From the file where it has any, else from the log."""
        return self._file_rows or self._log_evaluations


def parse_row(text: str, *, at: float | None) -> MetricRow | None:
    """The numbers of one line: a dict, JSON, `step:10 - a:1 - b:2`, `a=1 b=2`, or a named value."""
    values = _from_mapping(text) or _from_pairs(text)
    if not values:
        return None
    step = next((values[name] for name in _STEPS if name in values), None)
    if step is None and (match := _STEP_TEXT.search(text)):
        step = float(match[1])
    kept = {name: value for name, value in values.items() if name not in _STEPS}
    return MetricRow(step=step, at=at, values=kept) if kept else None


def _from_mapping(text: str) -> dict[str, float]:
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return {}
    body = re.sub(r"np\.\w+\(([^()]*)\)", r"\1", text[start : end + 1])
    loaded = _literal(body)
    if not isinstance(loaded, Mapping):
        return {}
    return {_name(key): number for key, value in loaded.items() if (number := _number(value)) is not None}


def _literal(body: str) -> Any:
    for load in (json.loads, ast.literal_eval):
        try:
            return load(re.sub(r"(?<![\w'\"])(nan|-?inf)(?![\w'\"])", "None", body))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _from_pairs(text: str) -> dict[str, float]:
    """`name=value` pairs; of a lone pair the name must be one that reports use."""
    if len(text) > 4000:
        return {}
    pairs: dict[str, float] = {}
    for match in _PAIR.finditer(text):
        name, value = _name(match["name"]), float(match["value"])
        if math.isfinite(value) and (_EVALUATION.fullmatch(name) or _KNOWN.search(name) or name in _STEPS):
            pairs[name] = value / 100 if match["percent"] and name.startswith("task_pass_rate") else value
    told = [name for name in pairs if name not in _STEPS]
    return pairs if told else {}


def _name(key: Any) -> str:
    """Without what a tracker puts before it and a note in parentheses behind it."""
    name = re.sub(r"\([^()]*\)$", "", str(key)).strip()
    tail = name.rpartition("/")[2]
    tail = _ALIASES.get(tail, tail)
    return tail if _EVALUATION.fullmatch(tail) else name
