"""Student's t against printed tables, and the intervals made of it."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest

from posttrain.core.student import difference_interval, spread, t_cdf, t_quantile

# two-sided 95 % and 99 %: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2
TABLE = {
    1: (12.706, 63.657), 2: (4.303, 9.925), 3: (3.182, 5.841), 4: (2.776, 4.604), 5: (2.571, 4.032),
    6: (2.447, 3.707), 7: (2.365, 3.499), 8: (2.306, 3.355), 9: (2.262, 3.250), 10: (2.228, 3.169),
    15: (2.131, 2.947), 20: (2.086, 2.845), 30: (2.042, 2.750), 60: (2.000, 2.660), 100: (1.984, 2.626),
}  # fmt: skip


@pytest.mark.parametrize("df", TABLE)
def test_quantiles_are_those_of_the_table(df: int) -> None:
    assert (round(t_quantile(0.975, df), 3), round(t_quantile(0.995, df), 3)) == TABLE[df]


@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.9999])
def test_one_and_two_degrees_have_closed_forms(p: float) -> None:
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9)
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-9)


def test_many_degrees_are_the_normal_distribution() -> None:
    assert t_quantile(0.975, 1e7) == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-6)


@pytest.mark.parametrize("df", [0.3, 1, 2.5, 17, 400, 1e5])
@pytest.mark.parametrize("p", [0.001, 0.3, 0.5, 0.8, 0.9999])
def test_quantile_and_distribution_are_inverse_for_fractional_degrees_too(df: float, p: float) -> None:
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-9)


def test_the_distribution_is_symmetric_and_rises() -> None:
    points = [t_cdf(t / 10, 4.5) for t in range(-60, 61)]
    assert points == sorted(points)
    assert all(low + high == pytest.approx(1.0) for low, high in zip(points, reversed(points), strict=True))


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.9, 0), (0.9, -1)])
def test_what_is_no_probability_is_refused(p: float, df: float) -> None:
    with pytest.raises(ValueError, match=r"probability|degrees"):
        t_quantile(p, df)


def test_a_mean_of_three_has_the_interval_of_the_textbook() -> None:
    found = spread([19.6, 19.6, 17.6])
    assert found.mean == pytest.approx(18.9333, abs=1e-4)
    # s = 1.1547, s / sqrt(3) = 0.6667, t(2) = 4.3027
    assert found.interval == pytest.approx((18.9333 - 2.8684, 18.9333 + 2.8684), abs=1e-3)


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    assert spread([5.0]) == (5.0, None, None, 1)
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_equal_values_leave_nothing_open() -> None:
    assert spread([0.0, 0.0]).interval == (0.0, 0.0)
    assert difference_interval([2.0, 2.0], [1.0, 1.0]) == (1.0, 1.0)


def test_a_difference_is_welchs() -> None:
    # variances 1 / 3 and 20 / 12: standard error sqrt(2), 4 / (1/18 + 25/27) = 4.0755 degrees
    interval = difference_interval([1.0, 2.0, 3.0], [2.0, 4.0, 6.0, 8.0])
    assert interval is not None
    low, high = interval
    assert (low + high) / 2 == pytest.approx(-3.0)
    assert t_cdf((high - low) / 2 / math.sqrt(2), 4 / (1 / 18 + 25 / 27)) == pytest.approx(0.975)
    assert difference_interval([1.0], [1.0, 2.0]) is None


def test_intervals_cover_as_often_as_they_claim() -> None:
    rng = random.Random(1)
    means, differences = 0, 0
    for _ in range(2000):
        first = [rng.gauss(3.0, 1.0) for _ in range(3)]
        second = [rng.gauss(1.0, 4.0) for _ in range(5)]
        low, high = spread(first).interval or (0.0, 0.0)
        means += low <= 3.0 <= high
        low, high = difference_interval(first, second) or (0.0, 0.0)
        differences += low <= 2.0 <= high
    assert 0.93 <= means / 2000 <= 0.97
    assert 0.93 <= differences / 2000 <= 0.97
