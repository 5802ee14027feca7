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


class SiblingDelta(Frozen):
    """How far what a submission changed is another model: D = submission - base, S = sibling - base."""

    name: str
    identical: bool
    """Bitwise equal to the sibling after both are cast to the lower precision."""
    cosine: float | None = None
    """Of D and S over all elements; None where one of them is 0."""
    coefficient: float | None = None
    """D.S / S.S: about 0.5 for a half merge."""
    aligned_share: float = 0.0
    """Share of elements in tensors whose own cosine is at least 0.5."""
    compared_share: float = 1.0
    """Share of elements in tensors that the sibling has in the same shape."""


class Provenance(Frozen):
    """Where weights lie between the base and its siblings. Numbers, not a verdict."""

    copy_of_base: bool
    changed_share: float = Field(ge=0.0, le=1.0)
    relative_l2: float = Field(ge=0.0)
    """|submission - base| / |base|."""
    siblings: tuple[SiblingDelta, ...] = ()


class LoadReport(Frozen):
    """What a worker found when it took a submission's tensors into the base's own model."""

    dtype: str
    """The dtype in which the submission stores most of its elements."""
    copy_of_base: bool = False
    """Bitwise equal to the base after both are cast to the lower precision."""
    changed_share: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of elements that differ from the base."""
    zeroed_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of elements that are 0 where the base's are not: what an interrupted save leaves."""
    tensors: int = Field(default=0, ge=0)
    unchanged_tensors: int = Field(default=0, ge=0)
    """How many of them are exactly the base's."""
    provenance: Provenance | None = None
    """How the weights lie to the base and to the siblings that the lab knows; None if it knows none."""
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
    """One of `grading.ledger.RowKind`: opened, baseline, control, started, accepted, copied, graded, stopped,
    selected, tested, closed, resumed, verdict or event."""
    data: dict[str, Any]
    prev: str
    """BLAKE3 over the exact bytes of the line before, line end included; 64 zeros for the first."""
