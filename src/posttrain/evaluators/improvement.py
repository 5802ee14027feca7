"""Paired differences to the baseline on the same items, and what choosing among submissions does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posttrain.core.scores import Evaluation, Improvement, ItemResult, Metric
from posttrain.core.statistics import bonett_price, discordant, mcnemar_exact
from posttrain.evaluators.aggregate import is_binary
from posttrain.evaluators.bootstrap import bca_interval, best_of_k_interval


def improvement(metric: Metric, baseline: Evaluation, other: Evaluation) -> Improvement:
    """How much better `other` is than `baseline`; ValueError unless both judged the same items in order.

    Items that are right or wrong: Bonett-Price interval and exact McNemar. Graded items and macro
    averages: BCa bootstrap over the items' differences, stratified; no interval if all are equal.
    """
    _check_paired(baseline.items, other.items)
    value = metric.gain(other.score.value, baseline.score.value)
    n = len(other.items)
    macro = baseline.score.macro or other.score.macro
    if not macro and is_binary(baseline.items) and is_binary(other.items):
        return _binary(metric, baseline, other, value=value)
    interval = bca_interval(_differences(metric, baseline, other, macro=macro), macro=macro)
    return Improvement(value=value, ci95=_in_points(interval), n=n, method="bca")


def identical(n: int) -> Improvement:
    """The improvement of a copy of the base: exactly nothing."""
    return Improvement(value=0.0, ci95=(0.0, 0.0), p_value=1.0, n=n, method="identical")


def overfit(val: Improvement, test: Improvement) -> Improvement:
    """How far validation flattered: the gain on validation less the gain on test, items independent.

    The interval recovers the variances from both intervals (MOVER; G. Y. Zou, A. Donner, Stat. Med.
    27, 2008). None where one of them has none.
    """
    value = val.value - test.value
    interval: tuple[float, float] | None = None
    if val.ci95 is not None and test.ci95 is not None:
        low = value - math.hypot(val.value - val.ci95[0], test.ci95[1] - test.value)
        high = value + math.hypot(val.ci95[1] - val.value, test.value - test.ci95[0])
        interval = (low, high)
    return Improvement(value=value, ci95=interval, n=min(val.n, test.n), method="mover")


def best_of_k(metric: Metric, baseline: Evaluation, submissions: Sequence[Evaluation]) -> Improvement:
    """The improvement of the best of all graded submissions, with an interval that knows it was chosen.

    For protocol `open`, where the best test score counts. The value is the observed one; the interval
    is moved by what choosing flatters, so it may lie below the value.
    """
    if not submissions:
        raise ValueError("the best of no submissions")
    for submission in submissions:
        _check_paired(baseline.items, submission.items)
    value = max(metric.gain(submission.score.value, baseline.score.value) for submission in submissions)
    gains = [_item_gains(metric, baseline, submission) for submission in submissions]
    interval = best_of_k_interval(gains)
    return Improvement(value=value, ci95=_in_points(interval), n=len(baseline.items), method="best-of-k")


def _binary(metric: Metric, baseline: Evaluation, other: Evaluation, *, value: float) -> Improvement:
    gained, lost = discordant([i.value for i in baseline.items], [i.value for i in other.items])
    if metric.direction == "minimize":
        gained, lost = lost, gained
    n = len(other.items)
    low, high = bonett_price(gained, lost, n)
    p_value = mcnemar_exact(gained, lost)
    return Improvement(value=value, ci95=(100 * low, 100 * high), p_value=p_value, n=n, method="bonett-price")


def _differences(
    metric: Metric, baseline: Evaluation, other: Evaluation, *, macro: bool
) -> dict[str, list[float]]:
    strata: dict[str, list[float]] = {}
    for before, after in zip(baseline.items, other.items, strict=True):
        name = (after.stratum or "") if macro else ""
        strata.setdefault(name, []).append(metric.gain(after.value, before.value))
    return strata


def _item_gains(metric: Metric, baseline: Evaluation, other: Evaluation) -> list[float]:
    """Gains per item, weighted so that their plain mean is the improvement of a macro score too."""
    gains = [metric.gain(a.value, b.value) for b, a in zip(baseline.items, other.items, strict=True)]
    if not other.score.macro:
        return gains
    sizes: dict[str, int] = {}
    for item in other.items:
        sizes[item.stratum or ""] = sizes.get(item.stratum or "", 0) + 1
    per_stratum = len(gains) / len(sizes)
    return [
        gain * per_stratum / sizes[item.stratum or ""] for gain, item in zip(gains, other.items, strict=True)
    ]


def _check_paired(before: Sequence[ItemResult], after: Sequence[ItemResult]) -> None:
    if [item.id for item in before] != [item.id for item in after]:
        raise ValueError("an improvement needs the same items in the same order on both sides")


def _in_points(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (100 * interval[0], 100 * interval[1])
