"""Status, times and marks of a run."""

import pytest

from builders import grade
from posttrain.core.grading import Verdict
from posttrain.core.runs import Status
from posttrain.runs import outcome


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"error": "disk"}, Status.ERROR),
        ({"error": "disk", "interrupted": True}, Status.ERROR),
        ({"interrupted": True, "graded": 0}, Status.INTERRUPTED),
        ({"graded": 0, "agent_exit": 1}, Status.NO_SUBMISSION),
        ({"agent_exit": 1}, Status.AGENT_FAILED),
        ({"agent_exit": -9}, Status.AGENT_FAILED),
        ({"agent_exit": -15, "at_deadline": True}, Status.COMPLETED),
        ({}, Status.COMPLETED),
    ],
)
def test_the_first_status_that_fits_wins(facts, expected) -> None:
    defaults = {"error": None, "interrupted": False, "graded": 1, "agent_exit": 0, "at_deadline": False}
    assert outcome.status(**{**defaults, **facts}) is expected


def test_waiting_is_a_union_of_spans_not_their_sum() -> None:
    grades = [
        grade(1, 50, at=0, elapsed_seconds=10),
        grade(2, 50, at=5, elapsed_seconds=10),
        grade(3, 50, at=60, elapsed_seconds=1),
    ]
    assert outcome.waited(grades) == 16.0


def test_fault_time_counts_only_our_faults() -> None:
    grades = [
        grade(1, 50, elapsed_seconds=10, at=0),
        grade(2, None, status=Verdict.ERROR, elapsed_seconds=3, at=0),
    ]
    assert outcome.waited(grades, only=Verdict.ERROR) == 3.0
