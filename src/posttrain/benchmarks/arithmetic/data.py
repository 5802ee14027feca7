"""Sums and differences of one- to four-digit numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator

DIGITS = {1: 0.01, 2: 0.55, 3: 0.22, 4: 0.22}
"""Digits of the longer number and how often."""


def candidates(seed: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows without end, each with the canonical text that decides its split.

    A sum and its mirror image share one text.
    """
    rng = random.Random(seed)  # noqa: S311 (sampling, no secret)
    digits, weights = list(DIGITS), list(DIGITS.values())
    while True:
        length = rng.choices(digits, weights)[0]
        longer = rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
        other = rng.randrange(10**length)
        left, right = (longer, other) if rng.random() < 0.5 else (other, longer)
        operator = rng.choice("+-")
        result = left + right if operator == "+" else left - right
        small, large = sorted((left, right))
        canonical = f"{small} + {large}" if operator == "+" else f"{left} - {right}"
        yield (
            canonical,
            {
                "question": f"{left} {operator} {right} =",
                "answer": str(result),
                "length": f"{length} digit{'s' if length > 1 else ''}",
            },
        )
