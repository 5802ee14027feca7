"""Evaluator `exact`: is the answer the gold text, white space and a final full stop aside?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from posttrain.core.frozen import Frozen
from posttrain.core.scores import Item, Output
from posttrain.evaluators.aggregate import Judgement

_PHRASE = re.compile(r"\banswers?\s*(?:is|was|=|:)\s*:?", re.IGNORECASE)


class ExactSettings(Frozen):
    """`evaluator_settings` of a task that uses `exact`."""

    answer: str = "answer"
    ignore_case: bool = False
    ignore_spaces: bool = False
    """Compare without any white space, for sequences of brackets."""


class ExactJudge:
    """Judges one text against one gold text: behind "answer is" if it says so, else its first line."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = ExactSettings.model_validate(settings)
        self.constant = self._settings.answer

    def gold(self, item: Item) -> str:
        return str(item.fields[self._settings.answer])

    def judge(self, item: Item, output: Output) -> Judgement:
        found, rule = self._find(output.text)
        right = found is not None and self._plain(found) == self._plain(self.gold(item))
        return Judgement(
            value=float(right),
            extracted=found,
            rule=rule,
            strict=float(output.text.strip() == self.gold(item)),
        )

    def _find(self, text: str) -> tuple[str | None, str | None]:
        announced = [text[match.end() :].strip() for match in _PHRASE.finditer(text)]
        if announced and announced[-1]:
            return announced[-1].splitlines()[0].strip(), "answer_is"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return (lines[0], "first_line") if lines else (None, None)

    def _plain(self, text: str) -> str:
        text = text.strip().strip('*`"').removesuffix(".").strip()
        text = "".join(text.split()) if self._settings.ignore_spaces else " ".join(text.split())
        return text.casefold() if self._settings.ignore_case else text
