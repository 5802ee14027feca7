"""What a run comes to: pure functions from grades and facts to status, times and marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from posttrain.core.grading import Grade, Verdict
from posttrain.core.runs import RunPlan, Status

FAULT_LIMIT = 0.02
"""Share of the budget above which infrastructure faults mark a run."""


def status(
    *,
    error: str | None,
    interrupted: bool,
    graded: int,
    agent_exit: int | None,
    at_deadline: bool,
) -> Status:
    """The first status that fits, in the order of precedence that Status lists."""
    if error is not None:
        return Status.ERROR
    if interrupted:
        return Status.INTERRUPTED
    if graded == 0:
        return Status.NO_SUBMISSION
    if not at_deadline and agent_exit != 0:
        return Status.AGENT_FAILED
    return Status.COMPLETED


def waited(grades: Iterable[Grade], *, only: Verdict | None = None) -> float:
    """Seconds during which at least one submission was being copied, queued or graded."""
    spans = sorted(
        (begin := datetime.fromisoformat(grade.timestamp).timestamp(), begin + grade.elapsed_seconds)
        for grade in grades
        if only is None or grade.status is only
    )
    total, reached = 0.0, float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return round(total, 3)


def marks(
    plan: RunPlan, *, fault_s: float, flags: Sequence[str] = (), versions: Iterable[str] = ()
) -> tuple[str, ...]:
    """What a reader of the result has to know before comparing it with another."""
    found = []
    if plan.isolation == "none":
        found.append("isolation: none")
    if plan.kill == "best-effort":
        found.append("kill: best-effort")
    if plan.network == "host":
        found.append("network: host")
    if plan.request.protocol == "open":
        found.append("open: the score counts on data the agent saw scores of")
    if plan.request.limit is not None:
        found.append("limited")
    if plan.numeric.engine == "scripted":
        found.append("scripted engine")
    if fault_s > FAULT_LIMIT * plan.request.timeout_s:
        found.append(f"infrastructure faults: {fault_s:.0f} s of the budget")
    others = dict.fromkeys(version for version in versions if version != plan.version)
    found += [f"resumed by version {version}, begun by {plan.version}" for version in others]
    found += [f"flag: {flag}" for flag in flags]
    return tuple(found)
