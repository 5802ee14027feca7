"""The first label of a text."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.core.scores import Item, Output
from posttrain.evaluators.choice import ChoiceJudge
from posttrain.evaluators.exact import ExactJudge

BOOLEAN = {"labels": ["True", "False"]}
LETTERS = {"labels": ["(A)", "(B)", "(C)"], "announced": True}


def extracted(text: str, settings: dict[str, Any], gold: str) -> str | None:
    item = Item(id="1", fields={"answer": gold})
    return ChoiceJudge(settings).judge(item, Output(text=text, tokens=1)).extracted


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("True", "True"),
        (" false.", "False"),
        ("The answer is **TRUE**, not False", "True"),
        ("It is untrue and falsehood", None),
        ("False\nTrue", "False"),
        ("true_or_not", None),
        ("", None),
        ("yes", None),
    ],
)
def test_the_first_label_word_counts(text: str, label: str | None) -> None:
    assert extracted(text, BOOLEAN, "True") == label


def test_valid_is_not_found_in_invalid() -> None:
    assert extracted("invalid", {"labels": ["valid", "invalid"]}, "valid") == "invalid"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("(B)", "(B)"),
        ("B", "(B)"),
        ("B. the second", "(B)"),
        ("**C**", "(C)"),
        (r"\boxed{C}", "(C)"),
        ("A dog barks, so (C)", "(C)"),
        ("(A) is wrong, (B) too. So the answer is (C).", "(C)"),
        ("The answer is: B", "(B)"),
        ("Because of that", None),
    ],
)
def test_letters_are_read_with_or_without_brackets(text: str, label: str | None) -> None:
    assert extracted(text, LETTERS, "(A)") == label


def test_the_strict_format_is_the_label_and_nothing_else() -> None:
    judge, item = ChoiceJudge(BOOLEAN), Item(id="1", fields={"answer": "True"})
    assert judge.judge(item, Output(text=" True\n", tokens=1)).strict == 1.0
    loose = judge.judge(item, Output(text="It is True", tokens=1))
    assert (loose.value, loose.strict) == (1.0, 0.0)


def test_rows_may_bring_their_own_labels() -> None:
    item = Item(id="1", fields={"answer": "no", "labels": ["yes", "no"]})
    assert ChoiceJudge({}).judge(item, Output(text="No.", tokens=1)).value == 1.0


def test_a_gold_answer_that_is_no_label_is_a_fault_of_the_row() -> None:
    with pytest.raises(ValueError, match="'maybe' is none of the labels"):
        extracted("True", BOOLEAN, "maybe")


@pytest.mark.parametrize(
    ("text", "right"),
    [("] ] >", True), ("]]>", True), ("The answer is ] ] >.", True), ("] ]", False), ("", False)],
)
def test_exact_compares_the_answer_without_white_space(text: str, right: bool) -> None:
    item = Item(id="1", fields={"answer": "] ] >"})
    judged = ExactJudge({"ignore_spaces": True}).judge(item, Output(text=text, tokens=1))
    assert bool(judged.value) is right
