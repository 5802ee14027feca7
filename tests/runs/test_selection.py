"""Which submission is tested."""

import pytest

from builders import grade
from posttrain.core.scores import Metric
from posttrain.runs.selection import best, select

MAXIMIZE = Metric()


@pytest.mark.parametrize(
    ("grades", "expected"),
    [
        ([grade(1, 50, at=0), grade(2, 60, at=0), grade(3, 55, at=0)], (2, "best_val")),
        ([grade(1, 60, at=0), grade(2, 60, at=0)], (1, "best_val")),
        ([grade(1, 60, at=0), grade(2, 10, final=True, at=0)], (2, "final")),
        ([grade(1, 60, final=True, at=0), grade(2, 70, final=True, at=0)], (2, "final")),
        ([grade(1, 60, at=0), grade(2, None, final=True, at=0)], (1, "best_val")),
        ([grade(1, 0.0, at=0)], (1, "best_val")),
    ],
)
def test_holdout_takes_the_last_final_else_the_best_validation_score(grades, expected) -> None:
    chosen = select(grades, metric=MAXIMIZE, mode="holdout")
    assert chosen is not None
    assert (chosen.grade.submission_id, chosen.rule) == expected


def test_nothing_graded_selects_nothing() -> None:
    assert select([grade(1, None, at=0)], metric=MAXIMIZE, mode="holdout") is None
    assert select([], metric=MAXIMIZE, mode="open") is None


def test_contaminated_validation_falls_back_to_the_last_graded() -> None:
    grades = [grade(1, 90, at=0), grade(2, 50, at=0), grade(3, None, at=0)]
    chosen = select(grades, metric=MAXIMIZE, mode="holdout", val_contaminated=True)
    assert chosen is not None
    assert (chosen.grade.submission_id, chosen.rule) == (2, "last")


def test_open_takes_the_best_whatever_is_marked_final() -> None:
    chosen = select([grade(1, 60, at=0), grade(2, 50, final=True, at=0)], metric=MAXIMIZE, mode="open")
    assert chosen is not None
    assert (chosen.grade.submission_id, chosen.rule) == (1, "best_test")


def test_direction_belongs_to_the_metric() -> None:
    perplexity = Metric(name="error", direction="minimize")
    assert best([grade(1, 60, at=0), grade(2, 50, at=0)], metric=perplexity).submission_id == 2
