"""The contract between the harness and the scorer process: gold and texts in, an Evaluation out.

An evaluator of a task's own may ask the checkpoint itself: then the scorer writes EngineWanted lines
before its last one and reads an EngineGiven line for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from pydantic import Field

from posttrain.core.engine import Turn
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
    rehearsal: Literal["gold", "empty"] | None = None
    """An evaluator that asks the checkpoint itself gets gold or empty answers instead of a model's."""
    model: str | None = None
    """Folder of the complete checkpoint, for an evaluator that loads it itself."""


class EngineWanted(Frozen):
    """The scorer asks the checkpoint that is being graded about items."""

    event: Literal["wanted"] = "wanted"
    ids: tuple[str, ...]
    turns: tuple[tuple[Turn, ...], ...] | None = None
    """Other words than the pinned prompt's, one conversation an item."""
    generation: dict[str, Any] = Field(default_factory=dict)
    """Fields laid over the task's generation settings."""


class EngineGiven(Frozen):
    """The answers, in the order asked, `samples` of an item side by side; or why there are none."""

    outputs: tuple[Output, ...] = ()
    error: str = ""


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
