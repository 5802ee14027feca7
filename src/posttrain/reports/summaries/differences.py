"""Differences of scores in running text: `比上轮提升 5.8 分`, `dropped by 3.2 points`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from posttrain.reports.summaries import told
from posttrain.reports.summaries.facts import Handed

_MOVED = (
    r"(?:提升|提高|上升|上涨|增加|涨|退步|下降|降低|回落|下跌|降|跌|掉|\b(?:improved?|gain(?:ed|s)?|rose|up|"
    r"increased?|dropped|drops?|fell|down|lost|regressed|decreased?)\b)\s*(?:了|by|of|约)?"
)
_AGAINST = r"(?:比|较)\s*(?:上一?轮|Iteration\s*\d+|基线|基座|baseline)[^\d]{0,10}?"
_DELTA = re.compile(
    rf"(?:{_MOVED}|{_AGAINST})\s*[-+]?(\d{{1,3}}(?:\.\d{{1,4}})?)\s*(?:分(?!钟|之)|个?百分点|(?:points?|pts?|pp)\b)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,;。、\n]|\.\s|\s(?:but|while|and)\s|但|而|同时", re.IGNORECASE)
_OF_ANOTHER = re.compile(
    r"loss|reward|acc|format|格式|\bval|验证|训练集|准确率|token|长度|\bkl\b|margin|预期|预计|期望|目标|可能|希望"
    r"|expect|target|hope|could|would|might|should|至少|最多|子集|subset|本地|local|自测",
    re.IGNORECASE,
)
"""The words of a clause that speaks of something else than what was graded, or of what was hoped for."""
_ROUNDED = 0.1
"""A difference of two numbers with one decimal each."""


def wrong_differences(text: str, handed: Sequence[Handed]) -> Iterator[str]:
    """Differences in points that no two scores have, as they are written."""
    known = {entry.score for entry in handed} | {entry.baseline for entry in handed}
    scores = [score for score in known if score is not None]
    if not any(entry.score is not None for entry in handed):
        return
    for clause in _CLAUSE.split(text):
        if _OF_ANOTHER.search(clause):
            continue
        for match in _DELTA.finditer(clause):
            value = told.number(match[1])
            pairs = combinations(scores, 2)
            if (
                value is not None
                and value.value <= 100.0
                and not any(value.matches(abs(a - b), _ROUNDED) for a, b in pairs)
            ):
                yield match[0].strip()
