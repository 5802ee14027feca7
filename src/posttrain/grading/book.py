"""Every submission of a run and where it stands: what the ledger says, kept in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from posttrain.checkpoints.snapshot import Snapshot
from posttrain.core.errors import PosttrainError
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Grade, LedgerRow, Stage, SubmitRequest, Verdict
from posttrain.core.scores import Metric
from posttrain.grading.witness import Witness


class Accepted(Frozen):
    """Data of an `accepted` row: from here on the submission has its number."""

    submission_id: int
    timestamp: str
    relative: str
    """The folder, relative to the workspace."""
    request: SubmitRequest
    witness: Witness = Witness()
    """What the agent's reports and code looked like."""


class Copied(Frozen):
    """Data of a `copied` row: the grader's own copy is complete."""

    submission_id: int
    snapshot: Snapshot


def _unfinished() -> Future[Grade]:
    """A future that nobody but the grader ends: a waiting client that hangs up must not cancel it."""
    future: Future[Grade] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass
class Submission:
    """One numbered submission; changed only by the grader, under its lock."""

    accepted: Accepted
    stage: Stage = Stage.COPYING
    snapshot: Snapshot | None = None
    grade: Grade | None = None
    out_of_space: bool = False
    """The copy failed because the disk was full."""
    ended: Future[Grade] = field(default_factory=_unfinished)
    since: float = field(default_factory=time.monotonic)
    """When it was accepted or, after a restart, taken up again."""

    @property
    def number(self) -> int:
        return self.accepted.submission_id

    @property
    def open(self) -> bool:
        return self.grade is None

    def copied(self, snapshot: Snapshot) -> None:
        self.snapshot, self.stage = snapshot, Stage.QUEUED

    def end(self, grade: Grade) -> None:
        self.grade, self.stage = grade, Stage.DONE
        self.snapshot = None  # the grade has the digest

    def announce(self) -> None:
        """Tell whoever waits for the grade."""
        if self.grade is not None and not self.ended.done():
            self.ended.set_result(self.grade)

    def give_up(self, error: PosttrainError) -> None:
        """Tell whoever waits that there will be no grade."""
        if not self.ended.done():
            self.ended.set_exception(error)


@dataclass(frozen=True)
class Standing:
    """Where a submission is, as GET /submissions tells it."""

    submission_id: int
    timestamp: str
    model_path: str
    stage: Stage
    position: int
    """1: the next to be graded; 0: being graded or done."""
    grade: Grade | None
    out_of_space: bool
    """The copy failed because the lab's disk was full."""


class Book:
    """All submissions, in the order in which they were accepted."""

    def __init__(self, rows: Iterable[LedgerRow] = ()) -> None:
        self._all: dict[int, Submission] = {}
        for row in rows:
            self._replay(row)

    def __iter__(self) -> Iterator[Submission]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def _replay(self, row: LedgerRow) -> None:
        if row.kind == "accepted":
            self.add(Submission(Accepted.model_validate(row.data)))
        elif row.kind == "copied":
            copied = Copied.model_validate(row.data)
            self._all[copied.submission_id].copied(copied.snapshot)
        elif row.kind == "graded":
            grade = Grade.model_validate(row.data)
            submission = self._all[grade.submission_id]
            submission.end(grade)
            submission.announce()

    def add(self, submission: Submission) -> None:
        self._all[submission.number] = submission

    @property
    def next_number(self) -> int:
        return max(self._all, default=0) + 1

    def open(self) -> list[Submission]:
        """Those without a verdict, in order of acceptance."""
        return [submission for submission in self if submission.open]

    def waiting(self) -> int:
        """How many are accepted and not yet being graded."""
        return sum(submission.stage in (Stage.COPYING, Stage.QUEUED) for submission in self)

    def position(self, number: int) -> int:
        """Place in the line: 1 is the next to be graded, 0 is being graded or done."""
        ahead = [s.number for s in self if s.stage in (Stage.COPYING, Stage.QUEUED)]
        return ahead.index(number) + 1 if number in ahead else 0

    def standing(self, number: int) -> Standing | None:
        submission = self._all.get(number)
        return None if submission is None else self._standing(submission)

    def standings(self) -> Iterator[Standing]:
        return (self._standing(submission) for submission in self)

    def _standing(self, submission: Submission) -> Standing:
        return Standing(
            submission_id=submission.number,
            timestamp=submission.accepted.timestamp,
            model_path=submission.accepted.request.model_path,
            stage=submission.stage,
            position=self.position(submission.number),
            grade=submission.grade,
            out_of_space=submission.out_of_space,
        )

    def counted(self) -> int:
        """How many stand against the cap; an open one does, until it turns out not to."""
        return sum(submission.grade is None or submission.grade.counts for submission in self)

    def grades(self) -> tuple[Grade, ...]:
        """All verdicts so far, by number."""
        return tuple(submission.grade for submission in self if submission.grade is not None)

    def first_with(self, digest: str) -> Grade | None:
        """The earliest verdict on this content that was not our own fault."""
        for grade in self.grades():
            if grade.digest == digest and grade.status is not Verdict.ERROR and grade.same_as is None:
                return grade
        return None

    def best(self, metric: Metric) -> Grade | None:
        """The best score so far; the earlier of equals."""
        winner: Grade | None = None
        for grade in self.grades():
            if grade.value is None:
                continue
            if winner is None or winner.value is None or metric.better(grade.value, winner.value):
                winner = grade
        return winner

    def worth_keeping(self, metric: Metric) -> set[int]:
        """Numbers whose copy may still be tested: the best, the last and the last final, by their first."""
        graded = [grade for grade in self.grades() if grade.value is not None]
        finals = [grade for grade in graded if grade.final]
        wanted = [self.best(metric), *graded[-1:], *finals[-1:]]
        return {grade.same_as or grade.submission_id for grade in wanted if grade is not None}
