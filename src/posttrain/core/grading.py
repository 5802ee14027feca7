"""What goes over the grading API and into the ledger: requests, verdicts, grades."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from posttrain.core.frozen import Frozen
from posttrain.core.scores import Evaluation, Improvement, Score

Split = Literal["val", "test"]


class Verdict(StrEnum):
    """How a grading ended. There is no fifth way, and none of them is a bare 0."""

    GRADED = "graded"
    REJECTED = "rejected"
    """Against the rules."""
    UNLOADABLE = "unloadable"
    """The checkpoint is at fault."""
    ERROR = "error"
    """The lab is at fault; does not count against the cap."""


class Stage(StrEnum):
    """Where an accepted submission stands."""

    COPYING = "copying"
    QUEUED = "queued"
    GRADING = "grading"
    DONE = "done"


class SubmitRequest(Frozen):
    """The body of POST /submit."""

    model_path: str = Field(min_length=1, max_length=4096)
    """Absolute inside the workspace or relative to it, below `output/`."""
    gpu: str | None = Field(default=None, max_length=128)
    note: str | None = Field(default=None, max_length=4000)
    final: bool = False
    """Hold this one against the test split when the run ends, instead of the best by validation."""
    wait: bool = True


class LoadReport(Frozen):
    """What a worker found when it took a submission's tensors into the base's own model."""

    dtype: str
    """The dtype in which the submission stores most of its elements."""
    copy_of_base: bool = False
    """Bitwise equal to the base after both are cast to the lower precision."""
    changed_share: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of elements that differ from the base."""
    repairs: tuple[str, ...] = ()
    """Certain repairs made on the copy, each a sentence."""
    notes: tuple[str, ...] = ()
    """Harmless differences: ignored files, config fields that were not taken over."""


class Assessment(Frozen):
    """The result of grading one checkpoint on one split; the base itself has no load report."""

    split: Split
    evaluation: Evaluation
    load: LoadReport | None = None
    generation_s: float = Field(default=0.0, ge=0.0)
    """Seconds of pure generation."""
    total_s: float = Field(default=0.0, ge=0.0)


class Grade(Frozen):
    """The final word on one submission, as kept in the ledger and in grading/<n>/grade.json."""

    submission_id: int = Field(ge=1)
    timestamp: str
    """ISO 8601 with zone: when the submission was accepted."""
    model_path: str
    """As it was sent."""
    status: Verdict
    split: Split
    score: Score | None = None
    baseline_score: float
    improvement: Improvement | None = None
    digest: str | None = None
    """BLAKE3 over names and bytes of the grader's own copy."""
    same_as: int | None = None
    """The earlier submission with equal content whose grade this is."""
    final: bool = False
    note: str | None = None
    flags: tuple[str, ...] = ()
    """Marks that the operator decides about, such as `copy_of_base`."""
    warnings: tuple[str, ...] = ()
    load: LoadReport | None = None
    elapsed_seconds: float = Field(default=0.0, ge=0.0)
    """Acceptance to verdict, waiting included."""
    error: str | None = None
    hint: str | None = None

    @property
    def value(self) -> float | None:
        """The score in points, None if nothing was graded."""
        return None if self.score is None else self.score.value

    @property
    def counts(self) -> bool:
        """Whether it counts against the cap: not our faults, not repetitions."""
        return self.status is not Verdict.ERROR and self.same_as is None


class LedgerRow(Frozen):
    """One line of ledger.jsonl."""

    seq: int = Field(ge=0)
    time: str
    """ISO 8601 with zone, UTC."""
    kind: str
    """opened, baseline, started, accepted, copied, graded, stopped, selected, tested, closed, resumed,
    verdict or event."""
    data: dict[str, Any]
    prev: str
    """BLAKE3 over the exact bytes of the line before, line end included; 64 zeros for the first."""
