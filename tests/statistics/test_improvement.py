"""Paired improvements: methods, signs, pairing."""

from __future__ import annotations

import pytest

from posttrain.core.scores import Evaluation, ItemResult, Metric
from posttrain.core.statistics import bonett_price
from posttrain.evaluators.aggregate import score_of
from posttrain.evaluators.improvement import best_of_k, identical, improvement, overfit

MAXIMIZE, MINIMIZE = Metric(), Metric(name="error", direction="minimize")


def evaluated(
    values: list[float], *, metric: Metric = MAXIMIZE, strata: str | None = None, macro: bool = False
) -> Evaluation:
    items = tuple(
        ItemResult(id=str(index), value=value, stratum=strata[index] if strata else None)
        for index, value in enumerate(values)
    )
    return Evaluation(score=score_of(items, metric=metric, macro=macro), items=items)


def test_right_or_wrong_items_get_bonett_price_and_mcnemar() -> None:
    before, after = evaluated([0, 0, 1, 1, 0] * 20), evaluated([1, 0, 1, 0, 1] * 20)
    got = improvement(MAXIMIZE, before, after)
    low, high = bonett_price(40, 20, 100)
    assert got.method == "bonett-price"
    assert got.value == pytest.approx(20.0)
    assert got.ci95 == pytest.approx((100 * low, 100 * high))
    assert got.p_value == pytest.approx(0.0135, abs=1e-3)


def test_a_lower_error_is_a_gain() -> None:
    before, after = (
        evaluated([1, 1, 1, 0] * 10, metric=MINIMIZE),
        evaluated([0, 0, 1, 0] * 10, metric=MINIMIZE),
    )
    got = improvement(MINIMIZE, before, after)
    assert got.value == pytest.approx(50.0)
    assert got.ci95 is not None
    assert got.ci95[0] > 0


def test_graded_items_get_bca() -> None:
    before, after = evaluated([0.25, 0.5, 0.0] * 10), evaluated([0.5, 0.5, 0.75] * 10)
    got = improvement(MAXIMIZE, before, after)
    assert got.method == "bca"
    assert got.p_value is None
    assert got.ci95 is not None
    assert got.ci95[0] < got.value < got.ci95[1]


def test_macro_averages_get_bca_even_for_right_or_wrong_items() -> None:
    before = evaluated([0, 1, 0, 0], strata="aabb", macro=True)
    after = evaluated([1, 1, 0, 1], strata="aabb", macro=True)
    assert improvement(MAXIMIZE, before, after).method == "bca"


def test_equal_graded_items_have_no_interval() -> None:
    same = evaluated([0.25, 0.5])
    assert improvement(MAXIMIZE, same, same).ci95 is None


def test_zero_of_forty_against_zero_of_forty_has_a_real_interval() -> None:
    none = evaluated([0.0] * 40)
    got = improvement(MAXIMIZE, none, none)
    assert got.value == 0.0
    assert got.ci95 is not None
    assert got.ci95[0] < 0 < got.ci95[1]


def test_other_items_are_refused() -> None:
    with pytest.raises(ValueError, match="same items"):
        improvement(MAXIMIZE, evaluated([0.0, 1.0]), evaluated([0.0, 1.0, 1.0]))


def test_a_copy_improves_by_exactly_nothing() -> None:
    assert identical(40).value == 0.0
    assert identical(40).ci95 == (0.0, 0.0)


def test_overfit_is_validation_gain_less_test_gain() -> None:
    base, better = evaluated([0, 0, 1, 0] * 25), evaluated([1, 1, 1, 0] * 25)
    slightly = evaluated([1, 0, 1, 0] * 25)
    got = overfit(improvement(MAXIMIZE, base, better), improvement(MAXIMIZE, base, slightly))
    assert got.value == pytest.approx(25.0)
    assert got.method == "mover"
    assert got.ci95 is not None
    assert got.ci95[0] < 25.0 < got.ci95[1]


def test_best_of_k_reports_the_best_and_widens_downwards() -> None:
    base = evaluated([0, 1, 0, 1] * 50)
    better, worse = evaluated([1, 1, 0, 1] * 50), evaluated([0, 1, 0, 0] * 50)
    got = best_of_k(MAXIMIZE, base, [worse, better])
    assert got.value == pytest.approx(25.0)
    assert got.method == "best-of-k"


def test_best_of_k_counts_strata_equally_for_a_macro_score() -> None:
    base = evaluated([0, 0, 0, 0], strata="abbb", macro=True)
    other = evaluated([1, 0, 0, 0], strata="abbb", macro=True)
    got = best_of_k(MAXIMIZE, base, [other])
    assert got.value == pytest.approx(50.0)
    assert got.ci95 is not None
    assert got.ci95[0] <= 50.0 <= got.ci95[1]
