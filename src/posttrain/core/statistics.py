"""Closed-form statistics for 0/1 items. Everything is in shares of 1, not in points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

Z95 = NormalDist().inv_cdf(0.975)


def wilson(successes: float, n: int, *, z: float = Z95) -> tuple[float, float]:
    """The Wilson score interval for a share of `n` trials.

    E. B. Wilson, JASA 22 (1927). `successes` may be fractional (a mean of graded items times n).
    Raises ValueError for n = 0 or successes outside [0, n].
    """
    if n <= 0:
        raise ValueError("an interval needs at least one item")
    if not 0.0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def bonett_price(gained: int, lost: int, n: int, *, z: float = Z95) -> tuple[float, float]:
    """The adjusted Wald interval for a difference of paired shares, (gained - lost) / n.

    D. G. Bonett, R. M. Price, "Adjusted Wald confidence interval for a difference of binomial
    proportions based on paired data", J. Educ. Behav. Stat. 37 (2012): one is added to each
    discordant count and two to n. `gained` are items that only the second got right, `lost` items
    that only the first did.
    """
    if n <= 0 or gained < 0 or lost < 0 or gained + lost > n:
        raise ValueError(f"gained {gained}, lost {lost} of {n}")
    p_gained = (gained + 1) / (n + 2)
    p_lost = (lost + 1) / (n + 2)
    difference = p_gained - p_lost
    half = z * math.sqrt((p_gained + p_lost - difference * difference) / (n + 2))
    return max(-1.0, difference - half), min(1.0, difference + half)


def mcnemar_exact(gained: int, lost: int) -> float:
    """The two-sided exact p-value of McNemar's test: a binomial test of `gained` against chance 1/2.

    Q. McNemar, Psychometrika 12 (1947), in the exact conditional form. 1.0 without discordant pairs.
    """
    if gained < 0 or lost < 0:
        raise ValueError(f"gained {gained}, lost {lost}")
    discordant = gained + lost
    if discordant == 0:
        return 1.0
    tail = sum(math.comb(discordant, k) for k in range(min(gained, lost) + 1))
    return min(1.0, float(2 * tail / 2**discordant))


def binary_standard_error(share: float, n: int) -> float:
    """sqrt(p (1 - p) / n), the standard error of a share of `n` independent items."""
    if n <= 0:
        raise ValueError("a standard error needs at least one item")
    return math.sqrt(max(0.0, share * (1.0 - share)) / n)


def discordant(before: Sequence[float], after: Sequence[float]) -> tuple[int, int]:
    """Counts (gained, lost) of 0/1 items in equal order; ValueError if lengths differ."""
    gained = sum(1 for old, new in zip(before, after, strict=True) if new > old)
    lost = sum(1 for old, new in zip(before, after, strict=True) if new < old)
    return gained, lost
