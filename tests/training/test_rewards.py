"""The example agent's reward reads final answers as AutoRL-Bench's did, signs included."""

from __future__ import annotations

import pytest

from posttrain.training.rewards import answer_reward, extract_answer, is_right, random_reward


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7\n#### 7", 7.0),
        ("#### -12", -12.0),
        ("#### +5", 5.0),
        ("#### 1,234.50", 1234.5),
        ("####7 and then 8", 7.0),
        ("first 3, then 9.", 9.0),
        ("it is 42.0", 42.0),
        ("no number", None),
        ("", None),
    ],
)
def test_the_marked_number_wins_over_the_last(text: str, number: float | None) -> None:
    assert extract_answer(text) == number


@pytest.mark.parametrize(
    ("said", "gold", "right"),
    [
        ("#### 42.0", "… #### 42", True),
        ("41", "#### 42", False),
        ("none", "42", False),
        ("True.", "True", True),
        (" true or so", "True", True),
        ("False, not True", "True", False),
        ("", "True", False),
    ],
)
def test_an_answer_is_right_by_number_or_by_first_word(said: str, gold: str, right: bool) -> None:
    assert is_right(said, gold) is right
    assert answer_reward([said], [gold], prompts=["?"]) == [1.0 if right else -1.0]


def test_random_rewards_follow_their_seed_and_nothing_else() -> None:
    said = ["right"] * 400
    first, again, other = random_reward(1)(said), random_reward(1)(["wrong"] * 400), random_reward(2)(said)
    assert first == again != other
    assert 140 < first.count(1.0) < 260
