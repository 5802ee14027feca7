"""Evaluator `per_sample`: the folder's own eval.py judges one answer at a time, as in the smith format.

`evaluate(question, model_answer, reference_answer, **other_columns) -> float` in [0, 1]. It is foreign
code: what it raises, prints or returns beyond that costs the item or is told, never the run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posttrain.core.errors import PluginError, boundary
from posttrain.core.evaluation import ScoringJob
from posttrain.core.scores import Evaluation, Item, Output
from posttrain.evaluators.aggregate import Judgement, evaluation
from posttrain.evaluators.foreign import EVAL, hushed, load_eval, unit_number


class PerSampleEvaluator:
    """Calls the folder's `evaluate` for every answer."""

    def __init__(self, job: ScoringJob) -> None:
        self._job = job

    def evaluate(self, items: Sequence[Item], outputs: Sequence[Output]) -> Evaluation:
        with hushed() as printed:
            judge = load_evaluate(Path(self._job.folder))
            judgements = [
                judged(judge, items[index // self._job.samples], output.text)
                for index, output in enumerate(outputs)
            ]
        warnings = [*oddities(judgements), *printed.warnings]
        return evaluation(
            items, outputs, judgements, metric=self._job.metric, macro=self._job.macro, warnings=warnings
        )

    def gold(self, item: Item) -> str:
        return written_answer(item)


def written_answer(item: Item) -> str:
    """The gold answer as a text; what is no text in the row is written as JSON."""
    answer = item.fields.get("answer")
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def load_evaluate(folder: Path) -> Callable[..., Any]:
    """The function `evaluate` of the folder's eval.py; PluginError if there is none."""
    function: Callable[..., Any] | None = getattr(load_eval(folder), "evaluate", None)
    if not callable(function):
        raise PluginError(f"{folder.name}/{EVAL}: has no function evaluate")
    return function


def judged(evaluate: Callable[..., Any], item: Item, text: str) -> Judgement:
    """What the function says of one answer; anything but a number in [0, 1] is a wrong item with a reason."""
    others = {name: value for name, value in item.fields.items() if name not in ("question", "answer")}
    try:
        with boundary(PluginError, "evaluate raised"):
            value = evaluate(item.fields.get("question"), text, item.fields.get("answer"), **others)
    except PluginError as error:
        return Judgement(value=0.0, rule="evaluate", reason=str(error)[:300])
    number = unit_number(value)
    if number is None:
        return Judgement(
            value=0.0, rule="evaluate", reason=f"evaluate returned {value!r:.80}, no number in [0, 1]"
        )
    return Judgement(value=number, extracted=text[:300], rule="evaluate")


def oddities(judgements: Sequence[Judgement]) -> list[str]:
    """One line for each kind of fault, with how often it was met."""
    kinds = Counter(judgement.reason for judgement in judgements if judgement.reason)
    shown = [
        f"{count} of {len(judgements)} answers count as wrong: {reason}"
        for reason, count in kinds.most_common(5)
    ]
    more = sum(count for _, count in kinds.most_common()[5:])
    return [*shown, f"{more} more answers count as wrong for other faults of eval.py"] if more else shown
