"""What is known about a run apart from what its agent wrote: times, submissions, scripts, logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from posttrain.core.frozen import Frozen
from posttrain.core.grading import Verdict
from posttrain.grading.witness import ReportMark
from posttrain.reports.summaries.script import Script

MINUTE = 60.0


class Handed(Frozen):
    """One submission and what came of it."""

    number: int
    at: float
    """Unix seconds of its acceptance."""
    path: str = ""
    status: Verdict
    score: float | None = None
    improvement: float | None = None
    """More than 0 is better, whatever the metric."""
    baseline: float | None = None
    copy_of_base: bool = False
    note: str | None = None
    error: str | None = None
    waited: float = 0.0
    """Seconds from acceptance to verdict."""


@dataclass(frozen=True)
class Log:
    """A text in which the cause of a failure may stand."""

    name: str
    text: str
    whole: bool = True
    """Nothing of it was left out for its size."""


@dataclass(frozen=True)
class Moment:
    """A submission, and what the reports and the code looked like then."""

    number: int
    reports: Mapping[str, ReportMark] = field(default_factory=dict)
    """By file name."""
    scripts: tuple[Script, ...] = ()


@dataclass(frozen=True)
class Facts:
    """Everything a summary is held against. What is None or empty is not known, and is not checked."""

    handed: Sequence[Handed] = ()
    handed_known: bool = True
    """Whether there was a scores.json or a ledger to read them from."""
    start: float | None = None
    """Unix seconds at which the agent's time began."""
    timeout_s: float | None = None
    end: float | None = None
    """When it was over; None while it goes on."""
    now: float | None = None
    scripts: Sequence[Script] = ()
    """The code as it is."""
    moments: Sequence[Moment] = ()
    logs: Sequence[Log] = ()
    logs_known: bool = False
    """Whether agent.log and run.log were there to be read."""

    def handed_by(self, moment: float) -> list[Handed]:
        """What had been handed in by then."""
        return [entry for entry in self.handed if entry.at <= moment]


def best_of(handed: Sequence[Handed]) -> Handed | None:
    """The best graded one, the earlier of equals."""
    graded = [entry for entry in handed if entry.improvement is not None]
    return max(graded, key=lambda entry: (entry.improvement or 0.0, -entry.number), default=None)


def process_metrics(
    handed: Sequence[Handed], *, start: float | None, end: float | None, timeout_s: float | None
) -> dict[str, object]:
    """The ten numbers of AutoRL-Bench over submissions that the lab did not fail to grade itself."""
    counted = [entry for entry in handed if entry.status is not Verdict.ERROR]
    scores = [entry.score for entry in counted]
    valid = [index for index, score in enumerate(scores) if (score or 0.0) > 0.0]
    improved = next((entry for entry in counted if (entry.improvement or 0.0) > 0.0), None)

    def delay(entry: Handed | None) -> int | None:
        return None if entry is None or start is None else int(entry.at - start)

    rises = sum(a is not None and b is not None and b > a for a, b in pairwise(scores))
    last = handed[-1].at if handed else None
    return {
        "valid_submission_rate": len(valid) / len(counted) if counted else None,
        "first_valid_idx": valid[0] + 1 if valid else None,
        "first_valid_delay": delay(counted[valid[0]]) if valid else None,
        "score_trajectory": scores,
        "time_to_first_improvement": delay(improved),
        "time_to_best": delay(best_of(counted)),
        "monotonic_ratio": rises / (len(counted) - 1) if len(counted) > 1 else None,
        "copy_model_count": sum(entry.copy_of_base for entry in counted),
        "time_used_ratio": None
        if None in (start, end, timeout_s)
        else ((end or 0.0) - (start or 0.0)) / (timeout_s or 1.0),
        "last_submit_gap": None if end is None or last is None else int(end - last),
    }
