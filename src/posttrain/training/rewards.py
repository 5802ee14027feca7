"""Rewards of the example agent: +1 for the right final answer, -1 for any other."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

RewardFunction = Callable[..., list[float]]
"""TRL's signature: keyword arguments `completions`, the columns of the rows, and more."""

RIGHT, WRONG = 1.0, -1.0
_NUMBER = r"[+-]?\d[\d,]*\.?\d*"
_MARKED = re.compile(r"####\s*(" + _NUMBER + ")")
_ANY = re.compile(_NUMBER)
_WORD = re.compile(r"\w+")


def extract_answer(text: str) -> float | None:
    """The number after `####`, else the last number of the text, else None."""
    marked = _MARKED.search(text)
    numbers = [marked.group(1)] if marked else _ANY.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def is_right(completion: str, gold: str) -> bool:
    """Equal numbers where the gold answer has one; else its first word is the first word said."""
    wanted = extract_answer(gold)
    if wanted is None:
        return _first_word(completion) == _first_word(gold)
    found = extract_answer(completion)
    return found is not None and abs(found - wanted) < 1e-6


def answer_reward(completions: Sequence[str], gold: Sequence[str], **_: Any) -> list[float]:
    """+1 or -1 for each completion."""
    return [
        RIGHT if is_right(said, wanted) else WRONG for said, wanted in zip(completions, gold, strict=True)
    ]


def random_reward(seed: int) -> RewardFunction:
    """+1 or -1 by the toss of a coin: what improves under it owes nothing to the reward."""
    coin = random.Random(seed)  # noqa: S311 - a control, not a secret

    def tossed(completions: Sequence[str], **_: Any) -> list[float]:
        return [coin.choice((RIGHT, WRONG)) for _ in completions]

    return tossed


def _first_word(text: str) -> str | None:
    found = _WORD.search(text)
    return found.group().casefold() if found else None
