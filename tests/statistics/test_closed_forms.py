"""Closed forms against values printed in the literature."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.core.statistics import bonett_price, discordant, mcnemar_exact, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [  # R. G. Newcombe, Statist. Med. 17 (1998) 857-872, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_bonett_price_gives_the_published_interval() -> None:
    # M. W. Fagerland, S. Lydersen, P. Laake, Statist. Med. 33 (2014), airway data: 1 and 7 of 21 changed
    assert bonett_price(1, 7, 21) == pytest.approx((-0.508, -0.013), abs=1e-3)


def test_exact_mcnemar_gives_the_published_p_value() -> None:
    assert mcnemar_exact(1, 7) == pytest.approx(0.0703, abs=5e-5)


def test_exact_mcnemar_is_the_two_sided_binomial_test() -> None:
    for gained, lost in itertools.product(range(9), repeat=2):
        n = gained + lost
        chances = [math.comb(n, k) / 2**n for k in range(n + 1)]
        as_rare = sum(chance for chance in chances if chance <= chances[gained] * (1 + 1e-9))
        assert mcnemar_exact(gained, lost) == pytest.approx(as_rare)


def test_no_gain_and_no_loss_still_has_an_interval() -> None:
    low, high = bonett_price(0, 0, 40)
    assert low < 0 < high


@given(st.integers(1, 400), st.data())
def test_intervals_mirror_when_gains_and_losses_are_swapped(n: int, data: st.DataObject) -> None:
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    low, high = bonett_price(gained, lost, n)
    assert bonett_price(lost, gained, n) == pytest.approx((-high, -low))
    assert -1 <= low <= high <= 1


@given(st.integers(1, 400), st.data())
def test_wilson_holds_the_share_itself(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1


def test_an_interval_over_no_items_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one item"):
        wilson(0, 0)
    with pytest.raises(ValueError):
        bonett_price(0, 0, 0)


def test_discordant_counts_each_direction() -> None:
    assert discordant([0, 1, 1, 0], [1, 0, 1, 0]) == (1, 1)
