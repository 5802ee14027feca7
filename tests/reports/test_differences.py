"""Differences in points that a text tells, against those that scores have."""

from __future__ import annotations

import pytest

from posttrain.core.grading import Verdict
from posttrain.reports.summaries.differences import wrong_differences
from posttrain.reports.summaries.facts import Handed

HANDED = [
    Handed(number=number, at=float(number), status=Verdict.GRADED, score=score, baseline=45.0)
    for number, score in enumerate((52.4, 58.2, 55.0), start=1)
]


@pytest.mark.parametrize(
    "text",
    [
        "比上轮 +9.8 分",
        "退步 1.2 分",
        "较基线提升了 20 个百分点",
        "improved by 7.9 points over the base",
        "loss fell, and the score dropped 5.1 pts",
    ],
)
def test_a_difference_that_no_two_scores_have_is_named(text: str) -> None:
    assert list(wrong_differences(text, HANDED))


@pytest.mark.parametrize(
    "text",
    [
        "比上轮 +5.8 分，比基线 +13.2 分",
        "退步 3.2 分",
        "下降 3 分",
        "up 10.0 points over the baseline",
        "格式正确率提升 12 分，但总分退步 3.2 分",
        "预计提升 5 分",
        "训练提升 30 分钟",
        "I hoped to gain 8 points",
        "gained 500 points of data",
    ],
)
def test_what_is_true_or_of_something_else_is_no_fault(text: str) -> None:
    assert not list(wrong_differences(text, HANDED))


def test_without_a_score_nothing_is_compared() -> None:
    assert not list(wrong_differences("提升 5 分", []))
