"""metrics.json against AutoRL-Bench's formulas and against what it got wrong."""

from __future__ import annotations

import pytest

from builders import START, grade, plan, record
from posttrain.core.grading import Grade, LoadReport, Verdict
from posttrain.reports.metrics import RunMetrics, Times, run_metrics

TIMES = Times(start=START, end=START + 480, last_submit=START + 400)


def metrics(*grades: Grade, times: Times = TIMES) -> RunMetrics:
    return run_metrics(grades, plan=plan(), record=record(), times=times)


def test_the_ten_fields_follow_the_formulas() -> None:
    found = metrics(
        grade(1, None, at=30),
        grade(2, 40.0, at=60),
        grade(3, 50.0, at=120.9),
        grade(4, 68.0, at=200),
        grade(5, 60.0, at=400, flags=("copy_of_base",)),
    )
    assert found.valid_submission_rate == pytest.approx(4 / 5)
    assert found.first_valid_idx == 2
    assert found.first_valid_delay == 60
    assert found.score_trajectory == (None, 40.0, 50.0, 68.0, 60.0)
    assert found.time_to_first_improvement == 120
    assert found.time_to_best == 200
    assert found.monotonic_ratio == pytest.approx(2 / 4)
    assert found.copy_model_count == 1
    assert found.time_used_ratio == pytest.approx(480 / 600)
    assert found.last_submit_gap == 80


def test_the_ten_fields_come_first_and_in_order() -> None:
    assert list(RunMetrics.model_fields)[:10] == [
        "valid_submission_rate",
        "first_valid_idx",
        "first_valid_delay",
        "score_trajectory",
        "time_to_first_improvement",
        "time_to_best",
        "monotonic_ratio",
        "copy_model_count",
        "time_used_ratio",
        "last_submit_gap",
    ]


def test_faults_of_the_lab_count_nowhere_but_in_the_verdicts() -> None:
    found = metrics(grade(1, None, at=10, status=Verdict.ERROR), grade(2, 50.0, at=60), grade(3, 55.0, at=90))
    assert found.valid_submission_rate == 1.0
    assert found.first_valid_idx == 1
    assert found.score_trajectory == (50.0, 55.0)
    assert found.monotonic_ratio == 1.0
    assert found.verdicts == {"graded": 2, "rejected": 0, "unloadable": 0, "error": 1}


def test_a_run_without_submissions_has_nulls_instead_of_zeros() -> None:
    found = metrics(times=Times(start=START))
    assert found.valid_submission_rate is None
    assert found.first_valid_idx is None
    assert found.score_trajectory == ()
    assert found.monotonic_ratio is None
    assert found.time_used_ratio is None
    assert found.last_submit_gap is None


def test_a_score_of_zero_is_a_score_but_not_a_valid_one() -> None:
    found = metrics(grade(1, 0.0, at=10), grade(2, None, at=20))
    assert found.score_trajectory == (0.0, None)
    assert found.valid_submission_rate == 0.0
    assert found.time_to_best == 10
    assert found.monotonic_ratio == 0.0


def test_the_earlier_of_equal_scores_is_the_best() -> None:
    assert metrics(grade(1, 60.0, at=50), grade(2, 60.0, at=90)).time_to_best == 50


def test_a_copy_is_found_by_its_weights() -> None:
    copied = LoadReport(dtype="bfloat16", copy_of_base=True)
    assert metrics(grade(1, 45.0, at=10, load=copied)).copy_model_count == 1


def test_the_report_says_how_much_the_run_may_be_trusted() -> None:
    found = metrics(grade(1, 50.0, at=10), grade(2, 50.0, at=20, same_as=1))
    assert (found.protocol, found.split) == ("holdout", "val")
    assert (found.isolation, found.network, found.kill) == ("none", "host", "namespace")
    assert found.overfit is not None
    assert found.repeated == 1
    assert found.marks == ("isolation: none",)
