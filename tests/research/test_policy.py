"""What comes next, what is kept, when it ends: by tables."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.research.nodes import Failure, Graded, Move, Node, Opinion
from posttrain.research.policy import (
    Costs,
    Policy,
    choose,
    decide,
    difference,
    dry_run_limit,
    train_limit,
    why_stop,
)
from research.nodes import graded, node

POLICY = Policy()
DRAFT = Move(kind="draft")
TWO = (node(1, score=70, kept=True), node(2, score=60))


@pytest.mark.parametrize(
    ("nodes", "move"),
    [
        ([], DRAFT),
        ([node(1, fault="answer")], DRAFT),
        ([node(1, fault="crash")], Move(kind="debug", parent=1)),
        ([node(1, fault="diverged")], Move(kind="debug", parent=1)),
        ([node(1, fault="crash"), node(2, "debug", 1, fault="timeout")], Move(kind="debug", parent=2)),
        (
            [node(1, fault="crash"), node(2, "debug", 1, fault="crash"), node(3, "debug", 2, fault="crash")],
            DRAFT,
        ),
        ([node(1, fault="crash"), node(2, "debug", 1, fault="answer")], DRAFT),
        ([node(1, score=70, kept=True)], DRAFT),
        ([node(1, score=45)], DRAFT),
        ([node(1, score=70, kept=True), node(2, score=60)], Move(kind="improve", parent=1)),
        ([node(1, score=60, kept=True), node(2, score=70, kept=True)], Move(kind="improve", parent=2)),
        (
            [node(1, score=60, kept=True), node(2, fault="crash"), node(3, "debug", 2, score=55)],
            Move(kind="improve", parent=1),
        ),
        (
            [*TWO, *(node(i, "improve", 1, score=65) for i in (3, 4, 5))],
            Move(kind="improve", parent=1),
        ),
        (
            [*TWO, *(node(i, "improve", 1, score=65) for i in (3, 4, 5, 6))],
            DRAFT,
        ),
        (
            [node(1, score=70, kept=True), node(2, score=60), node(3, "improve", 1, fault="crash")],
            Move(kind="debug", parent=3),
        ),
    ],
)  # fmt: skip
def test_the_next_move_follows_from_the_journal(nodes: list[Node], move: Move) -> None:
    assert choose(nodes, POLICY) == move


@pytest.mark.parametrize(
    ("grade", "best", "opinion", "kept", "by"),
    [
        (graded(70), None, None, True, "numbers"),
        (graded(70), None, False, True, "numbers"),
        (graded(50), None, True, False, "numbers"),
        (graded(40), None, True, False, "numbers"),
        (graded(53), None, True, True, "opinion"),
        (graded(53), None, False, False, "opinion"),
        (graded(53), None, None, False, "opinion"),
        (graded(80), graded(60), False, True, "numbers"),
        (graded(62), graded(60), True, True, "opinion"),
        (graded(60), graded(60), True, False, "numbers"),
        (graded(40), graded(60), True, False, "numbers"),
        (None, graded(60), True, False, "failure"),
    ],
)
def test_numbers_decide_before_opinions(
    grade: Graded | None, best: Graded | None, opinion: bool | None, kept: bool, by: str
) -> None:
    said = None if opinion is None else Opinion(observation="o", keep=opinion)
    failure = None if grade else Failure(fault="crash", text="boom")
    decision = decide(grade, failure, best, said)
    assert (decision.kept, decision.by) == (kept, by)


def test_less_can_be_better() -> None:
    falling = {"improvement": 20.0, "improvement_ci95": (15.0, 25.0)}
    new, old = graded(30, **falling), graded(40, improvement=10.0)
    estimate, low, high = difference(new, old)
    assert estimate == 10.0
    assert low < estimate < high


def test_where_less_is_better_a_score_like_the_baselines_is_no_gain_over_the_best() -> None:
    best = graded(30, improvement=20.0, improvement_ci95=(15.0, 25.0))
    like_the_base = graded(50, improvement=0.0, improvement_ci95=(0.0, 0.0))
    assert difference(like_the_base, best)[0] == -20.0
    assert not decide(like_the_base, None, best, None).kept


def test_the_interval_of_a_difference_is_wider_than_either() -> None:
    _, low, high = difference(graded(70, half=5), graded(60, half=5))
    assert (low, high) == pytest.approx((10 - 50**0.5, 10 + 50**0.5))


@pytest.mark.parametrize(
    ("nodes", "remaining_s", "policy", "told"),
    [
        ([], 3600, POLICY, None),
        ([], 20, POLICY, "20 s are left"),
        ([node(1)], 47, POLICY, "at least 48 s"),
        ([node(1)], 49, POLICY, None),
        ([node(1), node(2)], 3600, Policy(most_iterations=2), "limit of 2"),
        ([node(i, fault="answer") for i in range(1, 13)], 3600, POLICY, "12 iterations in a row"),
        ([node(1), node(2, fault="cap")], 3600, POLICY, "no more submissions"),
        ([node(1), *(node(i, fault="server") for i in range(2, 13))], 3600, POLICY, None),
    ],
)
def test_it_ends_when_another_iteration_makes_no_sense(
    nodes: list[Node], remaining_s: float, policy: Policy, told: str | None
) -> None:
    why = why_stop(nodes, remaining_s=remaining_s, policy=policy)
    assert (why is None) if told is None else (why is not None and told in why)


@pytest.mark.parametrize(
    ("asked_s", "remaining_s", "limit_s"),
    [
        (None, 1000, 300),
        (60, 1000, 60),
        (3, 1000, 15),
        (5000, 1000, 300),
        (None, 30, 0),
        (600, 36, 15),
        (600, 40, 15),
        (None, 5, 0),
        (None, -5, 0),
    ],
)
def test_a_training_leaves_time_to_hand_in(asked_s: Any, remaining_s: float, limit_s: float) -> None:
    costs = Costs(close=16)
    assert train_limit(asked_s, remaining_s=remaining_s, costs=costs, policy=POLICY) == pytest.approx(limit_s)


@pytest.mark.parametrize(("remaining_s", "limit_s"), [(3600, 180), (100, 25), (1, 5)])
def test_a_dry_run_is_short(remaining_s: float, limit_s: float) -> None:
    assert dry_run_limit(remaining_s=remaining_s, policy=POLICY) == limit_s
