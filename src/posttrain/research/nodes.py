"""What an iteration is made of: the results of its steps, and the node that the journal keeps of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from posttrain.core.frozen import Frozen
from posttrain.llm.messages import Usage

Kind = Literal["draft", "improve", "debug"]
Fault = Literal[
    "answer",
    "server",
    "time",
    "crash",
    "timeout",
    "diverged",
    "no_checkpoint",
    "refused",
    "ungraded",
    "cap",
]
"""Why an iteration got no score. answer, server, time: the driver model's; refused: the grader's word; cap:
nothing more may be handed in."""
WRITTEN: tuple[Fault, ...] = ("crash", "timeout", "diverged", "no_checkpoint", "refused")
"""Faults of code that exists, which another iteration may mend."""


class Proposal(BaseModel):
    """An idea, as the driver model answers. Scenarios add fields of their own."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hypothesis: str = Field(min_length=1, description="what you will change and which effect you expect")
    reason: str = Field(default="", description="evidence from the journal or the data for it")
    minutes: float | None = Field(default=None, description="minutes of training that this needs")

    @field_validator("minutes")
    @classmethod
    def _sensible(cls, value: float | None) -> float | None:
        return value if value is not None and 0.0 < value < 1e6 else None


class Opinion(BaseModel):
    """What the driver model makes of a result."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    observation: str = Field(min_length=1, description="what happened, with the numbers that show it")
    lesson: str = Field(default="", description="what the next iteration should do differently")
    keep: bool = Field(default=False, description="whether this version should be built upon")


class Move(Frozen):
    """What the next iteration is: a new draft, an improvement, or a repair of a parent."""

    kind: Kind
    parent: int | None = None


class Failure(Frozen):
    """Why there is no score, for people and for the driver model."""

    fault: Fault
    text: str


class Begun(Frozen):
    """First step of an iteration."""

    move: Move
    started: str


class Proposed(Frozen):
    """Second step; one of idea and failure."""

    idea: dict[str, Any] | None = None
    failure: Failure | None = None
    usage: Usage = Usage()
    seconds: float = 0.0


class Built(Frozen):
    """Third step: files that exist now, relative to the iteration's code folder, with their digests."""

    files: dict[str, str] = Field(default_factory=dict)
    changes: str = ""
    failure: Failure | None = None
    usage: Usage = Usage()
    seconds: float = 0.0


class Curve(Frozen):
    """A training curve in short."""

    points: int = 0
    first: float | None = None
    last: float | None = None
    lowest: float | None = None
    not_finite: int = 0
    sampled: tuple[float | None, ...] = ()
    """At most twenty losses, evenly over the training; None where it was no number."""


class Execution(Frozen):
    """One process of the script: the dry run, or the training."""

    exit_code: int | None
    """None where we ended it."""
    seconds: float
    limit_s: float
    ended: Literal["exit", "limit", "diverged", "output"]
    curve: Curve = Curve()
    tail: str = ""
    """The last lines of its output."""
    failure: Failure | None = None


class Graded(Frozen):
    """A score as the grading server gave it."""

    submission_id: int
    model_path: str
    score: float
    ci95: tuple[float, float]
    baseline: float
    improvement: float
    improvement_ci95: tuple[float, float] | None = None
    n: int
    flags: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Scored(Frozen):
    """Sixth step; one of grade and failure."""

    grade: Graded | None = None
    failure: Failure | None = None
    seconds: float = 0.0


class Reviewed(Frozen):
    """Seventh step; no opinion where the driver model had none to give."""

    opinion: Opinion | None = None
    failure: Failure | None = None
    usage: Usage = Usage()
    seconds: float = 0.0


class Decision(Frozen):
    """Whether an iteration is built upon. Numbers first; the opinion counts where they do not decide."""

    kept: bool
    by: Literal["numbers", "opinion", "failure"]
    reason: str
    difference: tuple[float, float, float] | None = None
    """Estimate and interval against the best so far (the baseline at first), in points."""


class Node(Frozen):
    """One iteration, complete when it is written."""

    number: int = Field(ge=1)
    kind: Kind
    parent: int | None
    idea: dict[str, Any] | None
    files: dict[str, str]
    changes: str = ""
    dry_run: Execution | None = None
    training: Execution | None = None
    grade: Graded | None = None
    opinion: Opinion | None = None
    decision: Decision
    failure: Failure | None = None
    usage: Usage
    seconds: dict[str, float]
    """By step: propose, build, dry_run, train, grade, review."""
    started: str
    ended: str

    @property
    def hypothesis(self) -> str:
        return "" if self.idea is None else str(self.idea.get("hypothesis", ""))

    @property
    def mendable(self) -> bool:
        """Whether there is code that failed."""
        return self.failure is not None and self.failure.fault in WRITTEN and bool(self.files)
