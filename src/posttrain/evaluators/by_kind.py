"""Evaluator `by_kind`: rows of several kinds in one task, each judged by the evaluator of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from posttrain.core.frozen import Frozen
from posttrain.core.scores import Item, Output
from posttrain.evaluators import stock
from posttrain.evaluators.aggregate import Judgement


class Kind(Frozen):
    """One kind of row: a stock evaluator and its settings."""

    evaluator: str
    settings: dict[str, Any] = Field(default_factory=dict)


class KindSettings(Frozen):
    """`evaluator_settings` of a task that uses `by_kind`."""

    field: str = "kind"
    """The field of a row that names its kind."""
    kinds: dict[str, Kind]
    answer: str = "answer"


class KindJudge:
    """Hands each item to the judge of its kind."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = KindSettings.model_validate(settings)
        self._judges = {
            name: stock.make_judge(kind.evaluator, kind.settings)
            for name, kind in self._settings.kinds.items()
        }
        self.constant = self._settings.answer

    def gold(self, item: Item) -> str:
        return self._judge(item).gold(item)

    def judge(self, item: Item, output: Output) -> Judgement:
        return self._judge(item).judge(item, output)

    def _judge(self, item: Item) -> stock.Judge:
        kind = str(item.fields.get(self._settings.field))
        if kind not in self._judges:
            raise ValueError(f"a row of kind {kind!r}; known: {', '.join(sorted(self._judges))}")
        return self._judges[kind]
