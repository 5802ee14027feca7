"""The evaluators that ship, by name. Each is imported when it is used, so that extras stay optional."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from posttrain.core.errors import PluginError, UsageError, boundary
from posttrain.core.evaluation import EngineGiven, EngineWanted, Evaluator, ScoringJob
from posttrain.core.faults import first_fault
from posttrain.core.scores import Evaluation, Item, Output
from posttrain.evaluators.aggregate import Judgement, evaluation

Asked = Callable[[EngineWanted], EngineGiven]

_JUDGES = {
    "choice": "posttrain.evaluators.choice:ChoiceJudge",
    "numeric": "posttrain.evaluators.numeric:NumericJudge",
    "exact": "posttrain.evaluators.exact:ExactJudge",
    "math": "posttrain.evaluators.math:MathJudge",
    "by_kind": "posttrain.evaluators.by_kind:KindJudge",
}
"""Evaluators that look at one text at a time: class taking the task's settings."""

_WHOLE = {
    "code": "posttrain.evaluators.code:CodeEvaluator",
    "per_sample": "posttrain.evaluators.per_sample:PerSampleEvaluator",
}
"""Evaluators that look at all texts of a job together: class taking the job."""

OWN = "own"
"""The task folder's eval.py asks the checkpoint itself."""


class Judge(Protocol):
    """Judges one text at a time. A text that gives no answer is wrong; only a broken row raises."""

    constant: str | None
    """The field of the gold answer, if one answer given to all items makes sense as a guess."""

    def judge(self, item: Item, output: Output) -> Judgement: ...

    def gold(self, item: Item) -> str: ...


class JudgedEvaluator:
    """An evaluator made of a judge: every text judged on its own, then one score."""

    def __init__(self, judge: Judge, job: ScoringJob) -> None:
        self._judge = judge
        self._job = job

    def evaluate(self, items: Sequence[Item], outputs: Sequence[Output]) -> Evaluation:
        samples = self._job.samples
        judgements = [
            self._judge.judge(items[index // samples], output) for index, output in enumerate(outputs)
        ]
        return evaluation(
            items,
            outputs,
            judgements,
            metric=self._job.metric,
            macro=self._job.macro,
            constant=self._judge.constant,
        )

    def gold(self, item: Item) -> str:
        return self._judge.gold(item)


def names() -> tuple[str, ...]:
    """The stock evaluators."""
    return tuple(sorted((*_JUDGES, *_WHOLE, OWN)))


def make_judge(name: str, settings: Mapping[str, Any]) -> Judge:
    """The judge of that name; UsageError for an unknown one, PluginError for settings it does not know."""
    factory: Callable[[Mapping[str, Any]], Judge] = _load(_JUDGES, name)
    try:
        return factory(settings)
    except ValidationError as error:
        raise PluginError(f"evaluator_settings.{first_fault(error, whole=name)}") from error


def make_evaluator(job: ScoringJob, asked: Asked | None = None) -> Evaluator:
    """The evaluator that a job names; `asked` is how one of the task's own reaches the checkpoint."""
    with boundary(PluginError, f"evaluator {job.evaluator}"):
        if job.evaluator == OWN:
            return _own(job, asked or _nobody)
        if job.evaluator in _WHOLE:
            evaluator: Evaluator = _load(_WHOLE, job.evaluator)(job)
            return evaluator
        return JudgedEvaluator(make_judge(job.evaluator, job.settings), job)


def _own(job: ScoringJob, asked: Asked) -> Evaluator:
    from posttrain.evaluators.own import OwnEvaluator, form_of
    from posttrain.evaluators.run_eval import RunEvalEvaluator

    if form_of(Path(job.folder)) == "run_eval":
        return RunEvalEvaluator(job)
    return OwnEvaluator(job, asked)


def _nobody(wanted: EngineWanted) -> EngineGiven:  # noqa: ARG001
    return EngineGiven(error="there is no checkpoint to ask")


def _load(table: Mapping[str, str], name: str) -> Any:
    if name not in table:
        raise UsageError(f"evaluator: no evaluator {name!r}. Known: {', '.join(names())}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
