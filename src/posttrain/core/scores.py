"""Scores, items, outputs and improvements: the numbers that everything else moves around.

A score is always a percentage in [0, 100]; an item's result is a share in [0, 1]. What could not
be scored has no Score object at all, so that "failed" can never be read as 0.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from posttrain.core.frozen import Frozen


class Metric(Frozen):
    """The primary metric of a task and which direction is better."""

    name: str = "accuracy"
    direction: Literal["maximize", "minimize"] = "maximize"

    def better(self, challenger: float, incumbent: float) -> bool:
        """Whether `challenger` is strictly better than `incumbent` in this metric's direction."""
        return challenger > incumbent if self.direction == "maximize" else challenger < incumbent

    def gain(self, value: float, reference: float) -> float:
        """`value` against `reference` in points, signed so that more than 0 is always better."""
        return value - reference if self.direction == "maximize" else reference - value


class Item(Frozen):
    """One row of a task: what the prompt is made of and what the answer is checked against."""

    id: str
    """Digest of the canonical row; stable over machines and orders."""
    fields: dict[str, Any]
    """The row as the task wrote it, the gold answer under `answer` included."""
    stratum: str | None = None
    """Subtask or length class; macro averages and stratified bootstraps go by it."""


class Output(Frozen):
    """What an engine wrote for one prompt, stop strings removed."""

    text: str
    tokens: int = Field(ge=0)
    """Number of generated tokens, the end token not counted."""
    cut: bool = False
    """Ended by the length limit instead of a stop."""


class ItemResult(Frozen):
    """How one item was judged."""

    id: str
    value: float = Field(ge=0.0, le=1.0)
    """1 right, 0 wrong; shares in between for graded items."""
    extracted: str | None = None
    """The answer as it was read from the text; None if nothing was found."""
    rule: str | None = None
    """Which extraction rule found it."""
    strict: float | None = Field(default=None, ge=0.0, le=1.0)
    """The value under the strict output format, where the task defines one."""
    cut: bool = False
    stratum: str | None = None
    reason: str | None = None
    """Why a bad item counts as wrong (a raising evaluator, an unreadable value)."""
    secondary: dict[str, float] = Field(default_factory=dict)
    """Further per-item values in [0, 1], averaged into the score's secondary metrics."""


class Score(Frozen):
    """One number over one split, with what is needed to read it fairly."""

    metric: Metric
    value: float = Field(ge=0.0, le=100.0)
    n: int = Field(gt=0)
    """Always the whole split: a bad item is a wrong item."""
    stderr: float = Field(ge=0.0)
    """Standard error of `value`, in points."""
    ci95: tuple[float, float]
    """95 % interval of `value`, in points: Wilson for 0/1 items, BCa bootstrap otherwise."""
    secondary: dict[str, float] = Field(default_factory=dict)
    """Further metrics in percent; `strict_format` stands here."""
    constant_guess: float | None = None
    """What the best constant answer would score on these items, in percent."""
    cut_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of outputs that the length limit ended."""
    rules: dict[str, int] = Field(default_factory=dict)
    """How often each extraction rule was used; `none` counts texts without an answer."""
    warnings: tuple[str, ...] = ()
    macro: bool = False
    """The value is the plain mean over strata, not over items."""


class Evaluation(Frozen):
    """A score and the item results it was made of, in the order of the split."""

    score: Score
    items: tuple[ItemResult, ...]


class Improvement(Frozen):
    """Paired difference to the baseline on the same items, in points; more than 0 is better."""

    value: float
    ci95: tuple[float, float] | None
    """None where the method gives none (all differences equal under BCa)."""
    p_value: float | None = None
    """Exact McNemar for 0/1 items."""
    n: int = Field(gt=0)
    method: Literal["bonett-price", "bca", "identical", "mover", "best-of-k"]
    """mover: difference of two independent improvements; best-of-k: selection repeated in each draw."""
