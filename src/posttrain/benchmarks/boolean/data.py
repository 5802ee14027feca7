"""Random Boolean expressions in the form of BIG-Bench Hard, drawn uniformly among those of one length."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from blake3 import blake3

LENGTHS = {8: 0.08, 9: 0.27, 10: 0.27, 11: 0.18, 12: 0.12, 13: 0.08}
"""Symbols and how often. BIG-Bench Hard's rows have eight; there are too few of those to train on."""
TRUE_SHARE = 0.54
"""As in BIG-Bench Hard."""
_EXCLUDED = Path(__file__).with_name("excluded.txt")


def candidates(seed: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows without end, each with the canonical text that decides its split."""
    rng = random.Random(seed)  # noqa: S311 (sampling, no secret)
    excluded = frozenset(_EXCLUDED.read_text("ascii").split())
    lengths, weights = list(LENGTHS), list(LENGTHS.values())
    while True:
        length = rng.choices(lengths, weights)[0]
        wanted = rng.random() < TRUE_SHARE
        symbols = expression(rng, length)
        while value(symbols) != wanted:
            symbols = expression(rng, length)
        question = f"{' '.join(symbols)} is"
        if fingerprint(question) not in excluded:
            yield question, {"question": question, "answer": str(wanted), "length": f"{length:02d} symbols"}


def fingerprint(text: str) -> str:
    """The form in which excluded texts are listed: white space evened out, then hashed."""
    return blake3(" ".join(text.split()).encode()).hexdigest()


@cache
def expressions(length: int) -> int:
    """How many expressions there are of that many symbols."""
    joined = sum(terms(first) * 2 * expressions(length - first - 1) for first in range(1, length - 1))
    return terms(length) + joined if length > 0 else 0


@cache
def terms(length: int) -> int:
    """Expressions without `and` and `or` outside brackets."""
    return atoms(length) + terms(length - 1) if length > 0 else 0


@cache
def atoms(length: int) -> int:
    """Constants and expressions in brackets."""
    return 2 if length == 1 else expressions(length - 2)


def expression(rng: random.Random, length: int) -> list[str]:
    """One of all expressions of that length, each equally likely."""
    choice = rng.randrange(expressions(length)) - terms(length)
    if choice < 0:
        return _term(rng, length)
    for first in range(1, length - 1):
        choice -= terms(first) * 2 * expressions(length - first - 1)
        if choice < 0:
            rest = expression(rng, length - first - 1)
            return [*_term(rng, first), rng.choice(("and", "or")), *rest]
    raise AssertionError("the counts do not add up")


def _term(rng: random.Random, length: int) -> list[str]:
    if rng.randrange(terms(length)) >= atoms(length):
        return ["not", *_term(rng, length - 1)]
    if length == 1:
        return [rng.choice(("True", "False"))]
    return ["(", *expression(rng, length - 2), ")"]


def value(symbols: list[str]) -> bool:
    """The value of an expression: `not` before `and` before `or`."""
    rest = list(reversed(symbols))
    result = _any(rest)
    if rest:
        raise ValueError(f"symbols left over: {rest}")
    return result


def _any(rest: list[str]) -> bool:
    result = _all(rest)
    while rest and rest[-1] == "or":
        rest.pop()
        result = _all(rest) or result
    return result


def _all(rest: list[str]) -> bool:
    result = _not(rest)
    while rest and rest[-1] == "and":
        rest.pop()
        result = _not(rest) and result
    return result


def _not(rest: list[str]) -> bool:
    symbol = rest.pop()
    if symbol == "not":
        return not _not(rest)
    if symbol == "(":
        result = _any(rest)
        rest.pop()
        return result
    return symbol == "True"
