"""Evaluator `math`: is the final answer mathematically equal to the gold one? Decided by math-verify."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any

from posttrain.core.errors import MissingExtra
from posttrain.core.frozen import Frozen
from posttrain.core.scores import Item, Output
from posttrain.evaluators.aggregate import Judgement

_PARSE_S = 5
_LONGEST_TEXT = 50_000


class MathSettings(Frozen):
    """`evaluator_settings` of a task that uses `math`."""

    answer: str = "answer"


class MathJudge:
    """Judges one text against one gold expression, written in LaTeX or plainly."""

    constant = None

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = MathSettings.model_validate(settings)
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra("math", "evaluator math")
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def gold(self, item: Item) -> str:
        return rf"The answer is \boxed{{{item.fields[self._settings.answer]}}}."

    def judge(self, item: Item, output: Output) -> Judgement:
        from math_verify import verify

        gold_text = str(item.fields[self._settings.answer])
        gold, found = _parsed(rf"\boxed{{{gold_text}}}"), _parsed(output.text)
        if not found:
            return Judgement(value=0.0)
        # the plain comparison first: some gold answers are texts or intervals that cannot be computed with
        same = _boxed(output.text) == "".join(gold_text.split())
        right = same or bool(gold and verify(gold, found, timeout_seconds=_PARSE_S))
        return Judgement(value=float(right), extracted=str(found[-1]), rule=_rule(output.text))


def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    configs = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    found: list[Any] = parse(
        text[-_LONGEST_TEXT:], extraction_config=configs, parsing_timeout=_PARSE_S, raise_on_error=False
    )
    return found


def _rule(text: str) -> str:
    return "boxed" if "\\boxed" in text else "last_expression"


def _boxed(text: str) -> str | None:
    """The content of the last box without white space."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for index in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return "".join(text[begin:index].split())
    return None
