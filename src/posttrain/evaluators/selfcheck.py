"""Does the evaluator of a task work? Gold answers must score 100, empty ones 0."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from posttrain.core.errors import PluginError, boundary
from posttrain.core.evaluation import Evaluator, ScoringJob
from posttrain.core.frozen import Frozen
from posttrain.core.scores import Evaluation, Item, Output
from posttrain.core.specs import TaskSpec
from posttrain.evaluators.canaries import planted_cheats
from posttrain.evaluators.own import form_of
from posttrain.evaluators.stock import OWN, make_evaluator

Scorer = Callable[[ScoringJob], Evaluation]
"""Scores a job, in a process of its own or in this one."""


class SelfCheck(Frozen):
    """What an evaluator gives for perfect and for empty answers, in percent."""

    gold: float | None
    """None: the evaluator loads checkpoints itself and cannot be given answers."""
    empty: float | None
    n: int
    cheats: tuple[str, ...] = ()
    """Planted cheats that earned nothing."""
    warnings: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """In words."""
        if self.gold is None or self.empty is None:
            return "not possible, eval.py loads the checkpoint itself"
        caught = f"; caught: {', '.join(self.cheats)}" if self.cheats else ""
        return f"gold {self.gold:.1f}, empty {self.empty:.1f} on {self.n} items{caught}"


def self_check(spec: TaskSpec, items: Sequence[Item], *, score: Scorer) -> SelfCheck:
    """Check the evaluator of `spec` on `items`; PluginError says which expectation it misses.

    Stock evaluators owe 100 and 0, and nothing for planted cheats. An evaluator of the task's own owes
    only that gold beats empty; a gold score below 100 is a warning.
    """
    job = scoring_job(spec, items, ())
    if spec.evaluator == OWN and form_of(spec.folder) == "run_eval":
        return SelfCheck(gold=None, empty=None, n=len(items))
    gold, empty = score(_answered(job, "gold")), score(_answered(job, "empty"))
    of_gold, of_empty = gold.score.value, empty.score.value
    check = SelfCheck(gold=of_gold, empty=of_empty, n=len(items))
    if not gold.score.metric.better(of_gold, of_empty):
        raise PluginError(f"{spec.id}: gold answers score {of_gold:.2f}, empty ones {of_empty:.2f}")
    perfect = gold.score.metric.direction == "minimize" or (of_gold == 100.0 and of_empty == 0.0)
    if perfect:
        return check.model_copy(update={"cheats": _caught(spec, job, score=score)})
    if spec.evaluator in OWN_CODE:
        told = f"gold answers score {of_gold:.2f} and empty ones {of_empty:.2f}, not 100 and 0"
        return check.model_copy(update={"warnings": (told,)})
    raise PluginError(f"{spec.id}: {_first_fault(gold, empty)}")


def _caught(spec: TaskSpec, job: ScoringJob, *, score: Scorer) -> tuple[str, ...]:
    """The planted cheats, if none of them earned anything; PluginError names the first that did."""
    if spec.evaluator in OWN_CODE:
        return ()
    evaluator = make_evaluator(job)
    jobs = planted_cheats(job, evaluator.gold)
    for name, cheating in jobs.items():
        earned = next((item for item in score(cheating).items if item.value > 0.0), None)
        if earned is not None:
            raise PluginError(
                f"{spec.id}: a planted cheat ({name}) scores {earned.value} on item {earned.id}: "
                f"read as {earned.extracted!r} by rule {earned.rule}"
            )
    return tuple(jobs)


OWN_CODE = frozenset({"per_sample", OWN})
"""Evaluators that are code of the task folder."""


def scoring_job(spec: TaskSpec, items: Sequence[Item], outputs: Sequence[Output]) -> ScoringJob:
    """The job that scores `outputs` of `items` as the task says."""
    settings: dict[str, Any] = dict(spec.evaluator_settings)
    return ScoringJob(
        evaluator=spec.evaluator,
        settings=settings,
        folder=str(spec.folder),
        metric=spec.metric,
        macro=spec.macro,
        items=tuple(items),
        outputs=tuple(outputs),
        samples=spec.generation.samples,
    )


def gold_texts(job: ScoringJob, items: Sequence[Item]) -> list[str]:
    """The perfect answer to each item, as its evaluator defines it."""
    evaluator = make_evaluator(job)
    return [_gold(evaluator, item, job.evaluator) for item in items]


def _gold(evaluator: Evaluator, item: Item, name: str) -> str:
    with boundary(PluginError, f"evaluator {name}: the gold answer of item {item.id}"):
        try:
            return evaluator.gold(item)
        except KeyError as error:
            row = json.dumps(item.fields, ensure_ascii=False, default=str)
            raise PluginError(f"evaluator {name}: a row has no field {error}: {row[:160]}") from error


def _answered(job: ScoringJob, kind: Literal["gold", "empty"]) -> ScoringJob:
    if job.evaluator == OWN:  # its code says what gold is, and runs in the scorer alone
        return job.model_copy(update={"rehearsal": kind})
    texts = gold_texts(job, job.items) if kind == "gold" else [""] * len(job.items)
    outputs = tuple(Output(text=text, tokens=0) for text in texts for _ in range(job.samples))
    return job.model_copy(update={"outputs": outputs})


def _first_fault(gold: Evaluation, empty: Evaluation) -> str:
    wrong = next((item for item in gold.items if item.value < 1.0), None)
    if wrong is not None:
        why = wrong.reason or f"read as {wrong.extracted!r} by rule {wrong.rule}"
        return f"the gold answer of item {wrong.id} scores {wrong.value}: {why}"
    right = next(item for item in empty.items if item.value > 0.0)
    return f"an empty answer to item {right.id} scores {right.value}"
