"""Evaluator `choice`: is the first label that a text names the gold one?

Labels are whole words in any case. Labels of the form `(A)` are also read as a bare letter, where it
stands alone at the start of the text or behind "answer is".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from posttrain.core.frozen import Frozen
from posttrain.core.scores import Item, Output
from posttrain.evaluators.aggregate import Judgement

_LETTER = re.compile(r"\(([A-Z])\)")
_PHRASE = re.compile(r"\banswers?\s*(?:is|was|=|:)\s*:?", re.IGNORECASE)
_MARKUP = re.compile(r"\\(?:boxed|text)|[*_`$\\{}\"']")


class ChoiceSettings(Frozen):
    """`evaluator_settings` of a task that uses `choice`."""

    labels: tuple[str, ...] = ()
    """The labels of every row; none: the rows carry theirs under `labels`."""
    answer: str = "answer"
    announced: bool = False
    """Look behind the last "answer is" first, for tasks whose texts reason before they answer."""


class ChoiceJudge:
    """Judges one text against one gold label."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = ChoiceSettings.model_validate(settings)
        self.constant = self._settings.answer

    def gold(self, item: Item) -> str:
        return str(item.fields[self._settings.answer])

    def judge(self, item: Item, output: Output) -> Judgement:
        gold = self.gold(item)
        labels = self._labels(item)
        if gold not in labels:
            raise ValueError(f"the gold answer {gold!r} is none of the labels {', '.join(labels)}")
        found, rule = self._find(output.text, labels)
        return Judgement(
            value=float(found == gold),
            extracted=found,
            rule=rule,
            strict=float(output.text.strip() == gold),
        )

    def _labels(self, item: Item) -> tuple[str, ...]:
        if self._settings.labels:
            return self._settings.labels
        return tuple(str(label) for label in item.fields.get("labels") or ())

    def _find(self, text: str, labels: tuple[str, ...]) -> tuple[str | None, str | None]:
        if self._settings.announced:
            for match in reversed(list(_PHRASE.finditer(text))):
                rest = text[match.end() :].split("\n\n", 1)[0]
                if label := first_label(rest, labels):
                    return label, "answer_is"
        label = first_label(text, labels)
        return label, None if label is None else "first_label"


def first_label(text: str, labels: tuple[str, ...]) -> str | None:
    """The label that the text names first; of two at one place the longer."""
    places = [(match.start(), -len(label), label) for label in labels if (match := _seek(text, label))]
    if places:
        return min(places)[2]
    letters = {match[1]: label for label in labels if (match := _LETTER.fullmatch(label))}
    alone = re.match(r"(?:option\s+)?\(?([A-Z])(?:[).:,\s]|$)", _MARKUP.sub("", text).lstrip())
    return letters.get(alone[1]) if alone else None


def _seek(text: str, label: str) -> re.Match[str] | None:
    """The label as a word of its own: `True` is not in `untrue`, `valid` is not in `invalid`."""
    before = r"(?<!\w)" if label[:1].isalnum() else ""
    after = r"(?!\w)" if label[-1:].isalnum() else ""
    flags = 0 if _LETTER.fullmatch(label) else re.IGNORECASE
    return re.search(before + re.escape(label) + after, text, flags)
