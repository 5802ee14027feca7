"""What to do next, what to build upon, and when to stop: pure functions of the journal and the clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from posttrain.core.frozen import Frozen
from posttrain.research.nodes import Decision, Failure, Graded, Move, Node, Opinion

STEPS_AN_ITERATION = 5
"""propose, code, run, feedback, record: what STEP_N counts."""


class Policy(Frozen):
    """The knobs of the search."""

    drafts: int = Field(default=2, ge=1)
    """Different beginnings that get a score before the best one is improved upon."""
    repairs: int = Field(default=2, ge=0)
    """Attempts in a row to mend one failed script."""
    patience: int = Field(default=4, ge=1)
    """Iterations without a new best after which another beginning is tried."""
    most_iterations: int | None = None
    most_failures: int = 12
    """Iterations in a row without any code, after which the driver model is given up."""
    least_train_s: float = 15.0
    dry_run_s: float = 180.0
    """Longest dry run."""
    share: float = Field(default=0.3, gt=0, le=1)
    """Of the time that is left, that one training may take: a search needs several."""
    hand_in_s: float = 10.0
    """Kept free at the end, to save and hand in."""


def choose(nodes: Sequence[Node], policy: Policy) -> Move:
    """The next iteration: mend what just failed, else a further beginning, else improve the best."""
    if nodes and nodes[-1].mendable and _mended(nodes) < policy.repairs:
        return Move(kind="debug", parent=nodes[-1].number)
    best = best_of(nodes)
    if best is None or _beginnings(nodes) < policy.drafts:
        return Move(kind="draft")
    idle = nodes[-1].number - max(best.number, _last_draft(nodes))
    if idle >= policy.patience:
        return Move(kind="draft")
    return Move(kind="improve", parent=best.number)


def _mended(nodes: Sequence[Node]) -> int:
    """How many repairs in a row led to the last node."""
    count = 0
    for node in reversed(nodes):
        if node.kind != "debug":
            break
        count += 1
    return count


def _beginnings(nodes: Sequence[Node]) -> int:
    """Drafts that were scored, themselves or after a repair."""
    roots = {node.number: node.number for node in nodes}
    for node in nodes:
        if node.kind == "debug" and node.parent in roots:
            roots[node.number] = roots[node.parent]
    drafts = {node.number for node in nodes if node.kind == "draft"}
    return len({roots[node.number] for node in nodes if node.grade is not None} & drafts)


def _last_draft(nodes: Sequence[Node]) -> int:
    return max((node.number for node in nodes if node.kind == "draft"), default=0)


def best_of(nodes: Sequence[Node]) -> Node | None:
    """The last one that was kept: each was kept against the best before it."""
    return next((node for node in reversed(nodes) if node.decision.kept), None)


def decide(
    grade: Graded | None, failure: Failure | None, best: Graded | None, opinion: Opinion | None
) -> Decision:
    """Keep what is beyond doubt better than the best so far, discard what is worse or no better.

    Only in between, where the estimate is higher and the interval holds 0, the opinion counts.
    """
    if grade is None:
        return Decision(kept=False, by="failure", reason=failure.text if failure else "no score")
    against = "the baseline" if best is None else f"submission {best.submission_id}"
    estimate, low, high = difference(grade, best)
    told = f"{estimate:+.1f} [{low:+.1f}, {high:+.1f}] points against {against}"
    shown = (round(estimate, 6), round(low, 6), round(high, 6))
    if low > 0:
        return Decision(kept=True, by="numbers", reason=f"{told}: better", difference=shown)
    if estimate <= 0:
        verdict = "worse" if high < 0 else "no better"
        return Decision(kept=False, by="numbers", reason=f"{told}: {verdict}", difference=shown)
    kept = opinion is not None and opinion.keep
    said = "the driver model would keep it" if kept else "the driver model would not keep it"
    return Decision(kept=kept, by="opinion", reason=f"{told}: undecided, {said}", difference=shown)


def difference(grade: Graded, best: Graded | None) -> tuple[float, float, float]:
    """Estimate and 95 % interval of the gain over the best so far; more than 0 is better.

    Against the baseline: the server's paired interval. Against another submission, of which the server
    tells no pairs: MOVER from both scores' intervals (Donner & Zou 2012), which is wider than a paired
    interval and so errs towards "undecided".
    """
    if best is None:
        low, high = grade.improvement_ci95 or (grade.improvement, grade.improvement)
        return grade.improvement, low, high
    # less is better where improvements and scores go opposite ways; a score like the baseline's tells nothing
    agreeing = sum((each.score - each.baseline) * each.improvement for each in (grade, best))
    sign = 1.0 if agreeing >= 0 else -1.0
    estimate = sign * (grade.score - best.score)
    new_low, new_high = _signed(grade.ci95, sign)
    old_low, old_high = _signed(best.ci95, sign)
    new, old = sign * grade.score, sign * best.score
    low = estimate - math.hypot(new - new_low, old_high - old)
    high = estimate + math.hypot(new_high - new, old - old_low)
    return estimate, low, high


def _signed(interval: tuple[float, float], sign: float) -> tuple[float, float]:
    low, high = sorted(sign * end for end in interval)
    return low, high


class Costs(Frozen):
    """What the steps took so far, in seconds; guesses before the first iteration."""

    ask: float = 0.0
    """Idea and code."""
    dry_run: float = 0.0
    close: float = 0.0
    """Grade and review."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Costs:
        """The dearest of the last three: an iteration begun in vain is a waste of the rest."""
        recent = nodes[-3:]

        def most(*steps: str) -> float:
            return max((sum(node.seconds.get(step, 0.0) for step in steps) for node in recent), default=0.0)

        return cls(ask=most("propose", "build"), dry_run=most("dry_run"), close=most("grade", "review"))


def why_stop(nodes: Sequence[Node], *, remaining_s: float, policy: Policy) -> str | None:
    """Why there is no further iteration, or None if there is one."""
    if policy.most_iterations is not None and len(nodes) >= policy.most_iterations:
        return f"the limit of {policy.most_iterations} iterations is reached"
    if nodes and nodes[-1].failure is not None and nodes[-1].failure.fault == "cap":
        return "no more submissions are accepted"
    silent = 0
    for node in reversed(nodes):
        if node.files or node.failure is None:
            break
        silent += 1
    if silent >= policy.most_failures:
        return f"{silent} iterations in a row gave no code"
    costs = Costs.of(nodes)
    needed = costs.ask + min(costs.dry_run, policy.dry_run_s) + policy.least_train_s + policy.hand_in_s
    if remaining_s < needed:
        return f"{remaining_s:.0f} s are left and an iteration takes at least {needed:.0f} s"
    return None


def dry_run_limit(*, remaining_s: float, policy: Policy) -> float:
    """Seconds for a dry run: never more than a quarter of what is left."""
    return max(5.0, min(policy.dry_run_s, 0.25 * remaining_s))


def train_limit(asked_s: float | None, *, remaining_s: float, costs: Costs, policy: Policy) -> float:
    """Seconds for a training; 0 if none makes sense any more.

    Grading and review may eat a quarter of what is left at most: what is accepted before the deadline is
    graded after it as well.
    """
    most = remaining_s - policy.hand_in_s - min(costs.close, 0.25 * remaining_s)
    if most < policy.least_train_s:
        return 0.0
    share = policy.share * remaining_s
    wanted = share if asked_s is None else min(asked_s, share)
    return min(most, max(policy.least_train_s, wanted))
