"""Which submission is held against the test split. Pure functions over grades."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from posttrain.core.grading import Grade
from posttrain.core.runs import Mode
from posttrain.core.scores import Metric

Selection = Literal["final", "best_val", "last", "best_test"]


class Selected(NamedTuple):
    grade: Grade
    rule: Selection


def select(
    grades: Sequence[Grade], *, metric: Metric, mode: Mode, val_contaminated: bool = False
) -> Selected | None:
    """The submission that counts, or None if nothing was graded.

    holdout: the last graded one marked final, else the best by validation, ties to the earlier; with a
    contaminated validation split the last graded one instead of the best. open: the best by test.
    Flags don't make a submission unselectable; they are carried along.
    """
    graded = [grade for grade in grades if grade.score is not None]
    if not graded:
        return None
    finals = [grade for grade in graded if grade.final]
    if mode == "holdout" and finals:
        return Selected(finals[-1], "final")
    if mode == "holdout" and val_contaminated:
        return Selected(graded[-1], "last")
    return Selected(best(graded, metric=metric), "best_val" if mode == "holdout" else "best_test")


def best(graded: Sequence[Grade], *, metric: Metric) -> Grade:
    """The best of grades that all have a score; the earlier of equals. ValueError for none."""
    if not graded:
        raise ValueError("no graded submission")
    winner = graded[0]
    for grade in graded[1:]:
        if grade.value is not None and winner.value is not None and metric.better(grade.value, winner.value):
            winner = grade
    return winner
