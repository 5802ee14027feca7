"""The bootstraps: known values, coverage by simulation, and what choosing the best does."""

from __future__ import annotations

import random

import pytest

from posttrain.evaluators.bootstrap import (
    bca_interval,
    best_of_k_interval,
    quantile,
    standard_error,
    weighted_mean,
)

LAW_DATA = [576, 635, 558, 578, 666, 580, 555, 661, 651, 605, 653, 575, 545, 572, 594]
"""LSAT scores of 15 law schools: Efron, Tibshirani, An Introduction to the Bootstrap (1993), table 3.1."""


def test_standard_error_of_a_mean_is_the_textbook_one() -> None:
    # Efron and Tibshirani: mean 600.3, standard deviation 41.8
    strata = {"": [float(score) for score in LAW_DATA]}
    assert weighted_mean(strata, macro=False) == pytest.approx(600.27, abs=0.01)
    assert standard_error(strata, macro=False) == pytest.approx(41.79 / 15**0.5, abs=0.01)


def test_bca_of_a_mean_of_many_values_is_near_the_normal_interval() -> None:
    rng = random.Random(3)
    values = [rng.random() for _ in range(2000)]
    mean = sum(values) / len(values)
    error = standard_error({"": values}, macro=False)
    low, high = bca_interval({"": values}, macro=False) or (0.0, 0.0)
    assert low == pytest.approx(mean - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.15 * error)


def test_bca_leans_towards_the_long_tail() -> None:
    values = [0.0] * 95 + [1.0] * 5
    low, high = bca_interval({"": values}, macro=False) or (0.0, 0.0)
    assert high - 0.05 > 0.05 - low > 0


def test_bca_of_equal_values_is_not_available() -> None:
    assert bca_interval({"a": [0.5, 0.5], "b": [1.0]}, macro=True) is None


def test_bca_is_seeded() -> None:
    strata = {"a": [0.0, 0.3, 1.0, 0.7], "b": [0.2, 0.9]}
    assert bca_interval(strata, macro=True) == bca_interval(strata, macro=True)


def test_macro_mean_weighs_strata_equally() -> None:
    assert weighted_mean({"small": [1.0], "large": [0.0] * 9}, macro=True) == 0.5
    assert weighted_mean({"small": [1.0], "large": [0.0] * 9}, macro=False) == pytest.approx(0.1)


def test_quantile_interpolates() -> None:
    assert quantile([0.0, 1.0, 2.0], 0.25) == 0.5
    assert quantile([0.0, 1.0], 7.0) == 1.0


def test_best_of_twenty_equal_candidates_shows_no_gain() -> None:
    rng = random.Random(11)
    items = 300
    gains = [[rng.choice((-1.0, 0.0, 0.0, 0.0, 1.0)) for _ in range(items)] for _ in range(20)]
    best = max(sum(candidate) / items for candidate in gains)
    naive = bca_interval({"": max(gains, key=sum)}, macro=False) or (0.0, 0.0)
    low, high = best_of_k_interval(gains) or (0.0, 0.0)
    assert best > 0.03
    assert low < 0 < high
    assert low < naive[0]


def test_best_of_one_candidate_is_an_ordinary_interval() -> None:
    rng = random.Random(5)
    gains = [rng.choice((-1.0, 0.0, 1.0, 1.0)) for _ in range(400)]
    low, high = best_of_k_interval([gains]) or (0.0, 0.0)
    mean, error = sum(gains) / 400, standard_error({"": gains}, macro=False)
    assert low == pytest.approx(mean - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.25 * error)


def test_best_of_many_is_quick() -> None:
    rng = random.Random(1)
    gains = [[rng.choice((-1.0, 0.0, 1.0)) for _ in range(500)] for _ in range(50)]
    assert best_of_k_interval(gains, draws=500) is not None


@pytest.mark.slow
def test_best_of_k_covers_the_true_gain_of_what_was_chosen() -> None:
    covered = 0
    for trial in range(200):
        rng = random.Random(trial)
        gains = [[rng.choice((-1.0, 0.0, 0.0, 0.0, 1.0)) for _ in range(200)] for _ in range(10)]
        low, high = best_of_k_interval(gains, draws=400, seed=trial) or (0.0, 0.0)
        covered += low <= 0.0 <= high
    assert covered >= 180


@pytest.mark.slow
def test_bca_of_graded_items_covers_what_it_claims() -> None:
    covered = 0
    for trial in range(300):
        rng = random.Random(trial)
        strata = {name: [rng.betavariate(0.5, 1.5) for _ in range(40)] for name in "abc"}
        low, high = bca_interval(strata, macro=True, draws=800, seed=trial) or (0.0, 0.0)
        covered += low <= 0.25 <= high
    assert 272 <= covered <= 297
