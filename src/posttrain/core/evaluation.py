"""The contract between the harness and the scorer process: gold and texts in, an Evaluation out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import Field

from posttrain.core.frozen import Frozen
from posttrain.core.scores import Evaluation, Item, Metric, Output


class ScoringJob(Frozen):
    """The one line that a scorer process reads; it answers with one Evaluation or a ScoringFailed."""

    evaluator: str
    settings: dict[str, Any] = Field(default_factory=dict)
    folder: str
    """The task folder, for evaluators that live in it."""
    metric: Metric
    macro: bool = False
    items: tuple[Item, ...]
    outputs: tuple[Output, ...]
    """`samples` outputs an item, all of the first item before those of the second."""
    samples: int = 1


class ScoringFailed(Frozen):
    """The evaluator raised; no score exists."""

    error: str


class Evaluator(Protocol):
    """Turns items and texts into an evaluation, or raises. A bad item is a wrong item with a reason."""

    def evaluate(self, items: Sequence[Item], outputs: Sequence[Output]) -> Evaluation:
        """`outputs` as in ScoringJob."""
        ...

    def gold(self, item: Item) -> str:
        """A text that must score 1: the self-check's perfect answer."""
        ...
