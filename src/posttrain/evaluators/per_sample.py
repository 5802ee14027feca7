"""Evaluator `per_sample`: the folder's own eval.py judges one answer at a time, as in the smith format.

`evaluate(question, model_answer, reference_answer, **other_columns) -> float` in [0, 1]. It is foreign
code: what it raises, prints or returns beyond that costs the item or is told, never the run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posttrain.core.errors import PluginError, boundary
from posttrain.core.evaluation import ScoringJob
from posttrain.core.scores import Evaluation, Item, Output
from posttrain.evaluators.aggregate import Judgement, evaluation

_MUCH_PRINTED = 10_000
_MODULE = "posttrain_task_eval"


class PerSampleEvaluator:
    """Calls the folder's `evaluate` for every answer."""

    def __init__(self, job: ScoringJob) -> None:
        self._job = job

    def evaluate(self, items: Sequence[Item], outputs: Sequence[Output]) -> Evaluation:
        with contextlib.redirect_stdout(_Counted()) as printed:
            judge = load_evaluate(Path(self._job.folder))
            judgements = [
                judged(judge, items[index // self._job.samples], output.text)
                for index, output in enumerate(outputs)
            ]
        warnings = _oddities(judgements)
        if printed.count > _MUCH_PRINTED:
            warnings.append(f"eval.py printed {printed.count} characters")
        return evaluation(
            items, outputs, judgements, metric=self._job.metric, macro=self._job.macro, warnings=warnings
        )

    def gold(self, item: Item) -> str:
        answer = item.fields.get("answer")
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def load_evaluate(folder: Path) -> Callable[..., Any]:
    """The function `evaluate` of the folder's eval.py; PluginError if there is none."""
    where = f"{folder.name}/eval.py"
    specification = importlib.util.spec_from_file_location(_MODULE, folder / "eval.py")
    if specification is None or specification.loader is None or not (folder / "eval.py").is_file():
        raise PluginError(f"{where}: no such file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[_MODULE] = module
    sys.path.insert(0, str(folder))  # eval.py may import its neighbours, as it can in the ancestor
    with boundary(PluginError, where):
        specification.loader.exec_module(module)
    function: Callable[..., Any] | None = getattr(module, "evaluate", None)
    if not callable(function):
        raise PluginError(f"{where}: has no function evaluate")
    return function


def judged(evaluate: Callable[..., Any], item: Item, text: str) -> Judgement:
    """What the function says of one answer; anything but a number in [0, 1] is a wrong item with a reason."""
    others = {name: value for name, value in item.fields.items() if name not in ("question", "answer")}
    try:
        with boundary(PluginError, "evaluate raised"):
            value = evaluate(item.fields.get("question"), text, item.fields.get("answer"), **others)
    except PluginError as error:
        return Judgement(value=0.0, rule="evaluate", reason=str(error)[:300])
    number = _number(value)
    if number is None:
        return Judgement(
            value=0.0, rule="evaluate", reason=f"evaluate returned {value!r:.80}, no number in [0, 1]"
        )
    return Judgement(value=number, extracted=text[:300], rule="evaluate")


def _number(value: Any) -> float | None:
    """The value as a float in [0, 1], None if it is none; numpy's numbers count."""
    try:
        with boundary(PluginError, "not a number"):
            number = float(value) if not isinstance(value, str) else math.nan
    except PluginError:
        return None
    return number if 0.0 <= number <= 1.0 else None


def _oddities(judgements: Sequence[Judgement]) -> list[str]:
    """One line for each kind of fault, with how often it was met."""
    kinds = Counter(judgement.reason for judgement in judgements if judgement.reason)
    shown = [
        f"{count} of {len(judgements)} answers count as wrong: {reason}"
        for reason, count in kinds.most_common(5)
    ]
    more = sum(count for _, count in kinds.most_common()[5:])
    return [*shown, f"{more} more answers count as wrong for other faults of eval.py"] if more else shown


class _Counted(io.TextIOBase):
    """A stream that counts what is written to it and keeps nothing."""

    def __init__(self) -> None:
        self.count = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.count += len(text)
        return len(text)
