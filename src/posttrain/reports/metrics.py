"""metrics.json: how a run went, as numbers. Pure functions over grades and the run's record.

The first ten fields are AutoRL-Bench's, by its formulas. Two things differ on purpose: submissions that the
lab itself failed to grade (`error`) are left out of every count and index, and what was not graded is null,
never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from posttrain.core.frozen import Frozen
from posttrain.core.grading import Grade, Split, Verdict
from posttrain.core.runs import Isolation, Mode, Network, RunPlan, RunRecord
from posttrain.core.scores import Improvement

COPY_OF_BASE = "copy_of_base"


class Times(NamedTuple):
    """The agent's budget in Unix seconds, as run_meta.json tells it."""

    start: float
    end: float | None = None
    last_submit: float | None = None


class RunMetrics(Frozen):
    """The content of metrics.json."""

    valid_submission_rate: float | None
    """Share of submissions with a score above 0."""
    first_valid_idx: int | None
    """1 for the first submission."""
    first_valid_delay: int | None
    """Seconds from the start to the first submission with a score above 0."""
    score_trajectory: tuple[float | None, ...]
    time_to_first_improvement: int | None
    """Seconds from the start to the first submission better than the baseline."""
    time_to_best: int | None
    monotonic_ratio: float | None
    """Share of neighbours in the trajectory of which the later has the greater score."""
    copy_model_count: int
    """Submissions whose weights are those of the base."""
    time_used_ratio: float | None
    last_submit_gap: int | None
    """Seconds from the last submission to the end."""
    verdicts: dict[str, int]
    """Every verdict with its count, `error` included."""
    repeated: int
    """Submissions with the content of an earlier one."""
    overfit: Improvement | None
    """(val - test of the selected) - (val - test of the base)."""
    selected: int | None
    split: Split
    """The split whose scores the trajectory shows."""
    protocol: Mode
    isolation: Isolation
    network: Network
    kill: str
    grading_wait_s: float
    harness_fault_s: float
    marks: tuple[str, ...]


def run_metrics(grades: Sequence[Grade], *, plan: RunPlan, record: RunRecord, times: Times) -> RunMetrics:
    """The metrics of a finished run; `grades` in the order of their ids."""
    counted = [grade for grade in grades if grade.status is not Verdict.ERROR]
    valid = [index for index, grade in enumerate(counted) if (grade.value or 0.0) > 0.0]
    improved = next((grade for grade in counted if _improves(grade)), None)
    best = _best(counted)
    return RunMetrics(
        valid_submission_rate=len(valid) / len(counted) if counted else None,
        first_valid_idx=valid[0] + 1 if valid else None,
        first_valid_delay=_delay(counted[valid[0]], times) if valid else None,
        score_trajectory=tuple(grade.value for grade in counted),
        time_to_first_improvement=_delay(improved, times) if improved else None,
        time_to_best=_delay(best, times) if best else None,
        monotonic_ratio=_monotonic_ratio([grade.value for grade in counted]),
        copy_model_count=sum(_is_copy(grade) for grade in counted),
        time_used_ratio=_time_used(times, plan.request.timeout_s),
        last_submit_gap=_last_gap(times),
        verdicts=verdict_counts(grades),
        repeated=sum(grade.same_as is not None for grade in counted),
        overfit=record.result.overfit if record.result else None,
        selected=record.result.submission_id if record.result else None,
        split="val" if plan.request.protocol == "holdout" else "test",
        protocol=plan.request.protocol,
        isolation=plan.isolation,
        network=plan.network,
        kill=plan.kill,
        grading_wait_s=record.grading_wait_s,
        harness_fault_s=record.harness_fault_s,
        marks=record.marks,
    )


def verdict_counts(grades: Iterable[Grade]) -> dict[str, int]:
    """How many submissions got each verdict; all four keys are always there."""
    counted = Counter(grade.status for grade in grades)
    return {verdict.value: counted[verdict] for verdict in Verdict}


def _improves(grade: Grade) -> bool:
    return grade.score is not None and grade.score.metric.better(grade.score.value, grade.baseline_score)


def _best(grades: Iterable[Grade]) -> Grade | None:
    """The best graded one, the earlier of equals."""
    winner: Grade | None = None
    for grade in grades:
        if grade.score is None:
            continue
        if (
            winner is None
            or winner.score is None
            or grade.score.metric.better(grade.score.value, winner.score.value)
        ):
            winner = grade
    return winner


def _delay(grade: Grade, times: Times) -> int:
    return int(datetime.fromisoformat(grade.timestamp).timestamp() - times.start)


def _monotonic_ratio(values: Sequence[float | None]) -> float | None:
    """Null for fewer than two submissions. A neighbour without a score is no increase."""
    if len(values) < 2:
        return None
    rises = sum(
        1 for before, after in pairwise(values) if before is not None and after is not None and after > before
    )
    return rises / (len(values) - 1)


def _is_copy(grade: Grade) -> bool:
    return COPY_OF_BASE in grade.flags or (grade.load is not None and grade.load.copy_of_base)


def _time_used(times: Times, timeout_s: float) -> float | None:
    return None if times.end is None else (times.end - times.start) / timeout_s


def _last_gap(times: Times) -> int | None:
    return None if times.end is None or times.last_submit is None else int(times.end - times.last_submit)
