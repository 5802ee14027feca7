"""A tiny base model and how it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from posttrain.core.engine import Prompt, PromptSettings, Turn
from posttrain.testing.tiny import tiny_model

CHAT = PromptSettings(style="chat", template="{question}", answer_template="{answer}")
QUESTIONS = [
    "1 + 1",
    "What is the name of the river that flows through the town where the bakers live?",
    "not ( True ) and ( False ) is",
    "Two trains leave at noon. " * 6,
    "x",
    "Say nothing twice, then say something once.",
    "A farmer has 17 sheep; all but nine run away. How many are left? " * 2,
]


def ask(questions: Sequence[str]) -> list[Prompt]:
    return [
        Prompt(id=str(number), turns=(Turn(role="user", content=question),))
        for number, question in enumerate(questions)
    ]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny", dtype="F32")


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return lambda **options: tiny_model(tmp_path_factory.mktemp("models") / "tiny", **options)
