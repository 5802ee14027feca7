"""Intervals over runs: Student's t in closed form and continued fraction, without numpy or scipy.

Values may have any unit; an interval has the unit of its values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import NamedTuple

_TINY = 1e-300
_CLOSE = 1e-15
_MOST_TERMS = 10_000


class Spread(NamedTuple):
    """How several values lie around their mean."""

    mean: float
    stderr: float | None
    """Standard error of the mean; None for fewer than two values."""
    interval: tuple[float, float] | None
    """95 % interval of the mean; None for fewer than two values."""
    n: int


def t_cdf(t: float, df: float) -> float:
    """The probability that Student's t with `df` degrees of freedom, which may be fractional, is below `t`.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.1 with 26.5.27: the tail is half
    a regularised incomplete beta function of df / (df + t^2).
    """
    if df <= 0:
        raise ValueError(f"{df} degrees of freedom")
    # the two arguments of the beta function are taken as they are: 1 - x would lose the small one
    tail = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))
    return 1.0 - tail if t > 0 else tail


def t_quantile(p: float, df: float) -> float:
    """The t below which a share `p` of the distribution lies; found by bisection of `t_cdf`."""
    if not 0.0 < p < 1.0:
        raise ValueError(f"{p} is no probability between 0 and 1")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def spread(values: Sequence[float], *, level: float = 0.95) -> Spread:
    """Mean and t-interval of independent values: mean +- t(n - 1) s / sqrt(n).

    Student, "The probable error of a mean", Biometrika 6 (1908). ValueError for no values.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    mean, n = fmean(values), len(values)
    if n == 1:
        return Spread(mean, None, None, 1)
    stderr = math.sqrt(variance(values) / n)
    half = t_quantile((1 + level) / 2, n - 1) * stderr
    return Spread(mean, stderr, (mean - half, mean + half), n)


def difference_interval(
    first: Sequence[float], second: Sequence[float], *, level: float = 0.95
) -> tuple[float, float] | None:
    """Interval of mean(first) - mean(second) for independent samples of unequal variance.

    B. L. Welch, Biometrika 34 (1947); degrees of freedom by F. E. Satterthwaite, Biometrics Bulletin 2
    (1946). None if a side has fewer than two values.
    """
    if len(first) < 2 or len(second) < 2:
        return None
    difference = fmean(first) - fmean(second)
    a, b = variance(first) / len(first), variance(second) / len(second)
    if a + b == 0.0:
        return difference, difference
    df = (a + b) ** 2 / (a * a / (len(first) - 1) + b * b / (len(second) - 1))
    half = t_quantile((1 + level) / 2, df) * math.sqrt(a + b)
    return difference - half, difference + half


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """The regularised incomplete beta function I_x(a, b); `y` is 1 - x.

    NIST Digital Library of Mathematical Functions, 8.17.22, a continued fraction that is fast for
    x < (a + 1) / (a + b + 2); beyond it I_x(a, b) = 1 - I_y(b, a), 8.17.4.
    """
    if x <= 0.0:
        return 0.0
    if y <= 0.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _by_fraction(b, a, y, x)
    return _by_fraction(a, b, x, y)


def _by_fraction(a: float, b: float, x: float, y: float) -> float:
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    return math.exp(log_front) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of DLMF 8.17.23 by the modified Lentz algorithm.

    W. J. Lentz, Applied Optics 15 (1976); I. J. Thompson, A. R. Barnett, J. Comput. Phys. 64 (1986).
    """
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / _away_from_zero(1.0 + step * d)
        c = _away_from_zero(1.0 + step / c)
        value *= c * d
        if abs(c * d - 1.0) < _CLOSE:
            return value
    raise ArithmeticError(f"the continued fraction of I_{x}({a}, {b}) does not converge")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
