"""Submissions from acceptance to verdict: numbered by the ledger, copied at once, graded one at a time."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from posttrain.checkpoints.intake import printable
from posttrain.checkpoints.snapshot import take_snapshot
from posttrain.core.errors import (
    InfrastructureError,
    LedgerError,
    PosttrainError,
    StorageFull,
    SubmissionFault,
    boundary,
)
from posttrain.core.grading import Assessment, Grade, Stage, SubmitRequest
from posttrain.core.paths import RunPaths
from posttrain.grading import verdicts
from posttrain.grading.book import Accepted, Book, Copied, Standing, Submission
from posttrain.grading.copies import Copies
from posttrain.grading.exports import Budget, Exports
from posttrain.grading.ledger import Ledger, utc_now
from posttrain.grading.recorder import Recorder
from posttrain.grading.requests import Closed, TooMany, choose_gpu, locate
from posttrain.grading.verdicts import Terms
from posttrain.grading.witness import Witness, take_witness

logger = logging.getLogger(__name__)

_LONGEST_RETRY_S = 60

OnFault = Callable[[str], None]


class Assesses(Protocol):
    """What grades a checkpoint folder on the served split."""

    def assess(
        self, folder: Path, *, label: str, gpu: str | None = None, on_fault: OnFault | None = None
    ) -> Assessment:
        """Grade, with one retry at identical settings when the lab failed.

        What the first failure was goes to `on_fault`. Raises SubmissionFault, InfrastructureError or
        PluginError.
        """
        ...

    def cancel(self) -> None:
        """End a running `assess` now, from another thread, by an InfrastructureError; refuse later ones."""
        ...


@dataclass(frozen=True)
class Ticket:
    """The claim of one accepted submission on its verdict."""

    submission_id: int
    ended: Future[Grade]
    """Ends with the grade, or with the error that keeps this run from giving one. Cannot be cancelled."""

    def wait(self, timeout_s: float | None = None) -> Grade:
        return self.ended.result(timeout_s)


class Grader:
    """Accepts, copies, queues and grades the submissions of one run.

    `submit` copies in the caller's thread; one thread of the grader's own grades, in order of acceptance.
    Made from a ledger that already has rows, it goes on where that ledger ends: verdicts stand, what was
    copied is graded, what was not completely copied is an `error`. As a context manager it starts that
    thread and, at the end, stops. Nothing is accepted before `open`.
    """

    def __init__(
        self,
        *,
        paths: RunPaths,
        ledger: Ledger,
        assessor: Assesses,
        terms: Terms,
        budget: Budget,
        exports: Exports,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`redact` takes out of a request's texts what no record may show."""
        self._paths = paths
        self._assessor = assessor
        self.terms = terms
        self.budget = budget
        self.exports = exports
        self._redact = redact
        self._metric = terms.baseline.score.metric
        self._book = Book(ledger.rows())
        self._copies = Copies(paths)
        self._changed = threading.Condition()
        # which copies stay is decided and done by one thread at a time; taken before _changed, never after
        self._keeping = threading.RLock()
        self._stopping = threading.Event()
        self._recorder = Recorder(ledger, paths, stopping=self._stopping)
        self._accepting = False
        self._failure: PosttrainError | None = None
        self._last_grading_s = 1.0
        self._thread = threading.Thread(target=self._work, name="grader")

    def __enter__(self) -> Grader:
        self._take_up_leftovers()
        self.exports.scores(self.grades)
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- what is known

    @property
    def grades(self) -> tuple[Grade, ...]:
        """All verdicts so far, by number."""
        with self._changed:
            return self._book.grades()

    @property
    def best(self) -> Grade | None:
        """The best score so far; the earlier of equals."""
        with self._changed:
            return self._book.best(self._metric)

    @property
    def total(self) -> int:
        """How many numbers were given."""
        with self._changed:
            return len(self._book)

    @property
    def queue_length(self) -> int:
        """How many are accepted and not yet being graded."""
        with self._changed:
            return self._book.waiting()

    @property
    def failure(self) -> PosttrainError | None:
        """Why this grader can give no further verdicts, if so."""
        return self._failure

    def standing(self, number: int) -> Standing | None:
        """Where a submission is; None for a number that was not given."""
        with self._changed:
            return self._book.standing(number)

    def standings(self) -> tuple[Standing, ...]:
        """Where all are, by number."""
        with self._changed:
            return tuple(self._book.standings())

    def copy_of(self, grade: Grade) -> Path:
        """The kept copy with this grade's content: the best, the last graded and the last final have one."""
        return self._copies.folder(grade.same_as or grade.submission_id)

    # --- life

    def open(self) -> None:
        """From now on submissions are accepted, while the budget lasts."""
        with self._changed:
            self._accepting = True

    def close(self) -> None:
        """Nothing more is accepted; what was accepted keeps its turn."""
        with self._changed:
            self._accepting = False

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything accepted has its verdict; False if `timeout_s` passes first.

        Raises what ended the grader, if something did.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: all(s.ended.done() for s in self._book), timeout_s)
        if self._failure is not None:
            raise self._failure
        return done

    def stop(self) -> None:
        """End now: no further verdicts, running children are killed, waiting clients are told.

        What has no verdict stays so in the ledger, for a later grader to take up.
        """
        with self._changed:
            self._accepting = False
            self._stopping.set()
            self._changed.notify_all()
        self._assessor.cancel()
        if self._thread.ident is not None:
            self._thread.join()
        self._tell_waiting(InfrastructureError("the run was stopped before this was graded"))

    # --- acceptance, in the caller's thread

    def refuse_if_closed(self) -> None:
        """Raise Closed unless submissions are accepted now."""
        if not self._accepting:
            raise Closed("no submissions are accepted now", hint="The run has ended or has not begun.")
        if self.budget.remaining() <= 0.0:
            raise Closed("the deadline has passed", hint="What was accepted before it is still graded.")

    def submit(self, request: SubmitRequest) -> Ticket:
        """Accept, number and copy one submission; returns once the copy is complete or has failed.

        Raises Closed, BadRequest or TooMany, in this order, and then no number was given. Raises
        StorageFull if not even the ledger's row could be written.
        """
        self.refuse_if_closed()
        relative = locate(request.model_path, workspace=self._paths.workspace.root)
        choose_gpu(request.gpu, available=self.terms.gpus)
        submission = self._accept(request, relative, take_witness(self._paths, redact=self._redact))
        self.exports.submitted(time.time())
        try:
            self._copy(submission)
        except (LedgerError, InfrastructureError) as error:
            self._fail(error)
        return Ticket(submission.number, submission.ended)

    def _accept(self, request: SubmitRequest, relative: str, witness: Witness) -> Submission:
        with self._changed:
            self.refuse_if_closed()
            self._refuse_if_too_many()
            accepted = Accepted(
                submission_id=self._book.next_number,
                timestamp=utc_now(),
                relative=relative,
                request=self._recorded(request),
                witness=witness,
            )
            self._recorder.row_now("accepted", accepted)
            submission = Submission(accepted)
            self._book.add(submission)
        return submission

    def _recorded(self, request: SubmitRequest) -> SubmitRequest:
        """The request as the ledger keeps it."""
        note = None if request.note is None else self._redact(request.note)
        return request.model_copy(update={"note": note, "model_path": self._redact(request.model_path)})

    def _refuse_if_too_many(self) -> None:
        if self._book.waiting() >= self.terms.max_waiting:
            pause = min(_LONGEST_RETRY_S, max(1, math.ceil(self._last_grading_s)))
            raise TooMany(
                f"{self.terms.max_waiting} submissions are waiting already",
                hint=f"Try again in {pause} s.",
                retry_after_s=pause,
            )
        if self._book.counted() >= self.terms.max_submissions:
            undecided = bool(self._book.open())
            raise TooMany(
                f"all {self.terms.max_submissions} submissions of this run are used",
                hint="Ask again when the open ones are graded." if undecided else "No more are accepted.",
                retry_after_s=1 if undecided else math.ceil(self.budget.remaining()) + 1,
            )

    def _copy(self, submission: Submission) -> None:
        try:
            with boundary(InfrastructureError, "copying"):
                snapshot = take_snapshot(
                    self._paths.workspace.root,
                    submission.accepted.relative,
                    self._copies.folder(submission.number),
                    limits=self.terms.limits,
                    cancelled=self._stopping,
                )
        except (SubmissionFault, InfrastructureError) as fault:
            if not self._stopping.is_set():
                submission.out_of_space = isinstance(fault, StorageFull)
                self._settle(submission, verdicts.refused(submission, fault, terms=self.terms))
            return
        self._copies.add(submission.number)
        self._recorder.row("copied", Copied(submission_id=submission.number, snapshot=snapshot))
        with self._changed:
            submission.copied(snapshot)
            self._changed.notify_all()

    # --- grading, in the grader's own thread

    def _work(self) -> None:
        try:
            with boundary(InfrastructureError, "grading"):
                while (submission := self._next()) is not None:
                    self._grade(submission)
        except PosttrainError as error:
            self._fail(error)

    def _next(self) -> Submission | None:
        """The earliest without a verdict, as soon as it is copied; None when the grader stops."""
        with self._changed:
            while not self._stopping.is_set():
                waiting = self._book.open()
                if waiting and waiting[0].stage is Stage.QUEUED:
                    waiting[0].stage = Stage.GRADING
                    return waiting[0]
                self._changed.wait()
        return None

    def _grade(self, submission: Submission) -> None:
        assert submission.snapshot is not None
        with self._changed:
            earlier = self._book.first_with(submission.snapshot.digest)
        if earlier is not None:
            # until the verdict says so, nothing else knows that the owner's copy is wanted
            with self._keeping:
                self._copies.adopt(submission.number, owner=earlier.submission_id)
                self._settle(submission, verdicts.repeated(submission, earlier, terms=self.terms))
            return
        begun = time.monotonic()
        grade = self._assessed(submission)
        if grade is not None:
            self._last_grading_s = time.monotonic() - begun
            self._settle(submission, grade)

    def _assessed(self, submission: Submission) -> Grade | None:
        """The verdict of a first grading; None if the grader was stopped meanwhile."""
        number = submission.number

        def on_fault(error: str) -> None:
            self._recorder.row("event", {"event": "grading failed", "submission_id": number, "error": error})

        try:
            with boundary(InfrastructureError, "grading"):
                assessment = self._assessor.assess(
                    self._copies.folder(number),
                    label=str(number),
                    gpu=choose_gpu(submission.accepted.request.gpu, available=self.terms.gpus),
                    on_fault=on_fault,
                )
                return verdicts.graded(submission, assessment, terms=self.terms)
        except LedgerError:
            raise
        except PosttrainError as fault:
            if self._stopping.is_set():
                return None
            logger.warning("submission %d: %s", number, printable(str(fault)))
            return verdicts.refused(submission, fault, terms=self.terms)

    # --- keeping the record

    def _settle(self, submission: Submission, grade: Grade) -> None:
        """Make a verdict durable, then visible, then tell whoever waits for it."""
        self._recorder.grade(grade)
        with self._changed:
            submission.end(grade)
            grades = self._book.grades()
        self.exports.scores(grades)
        with self._changed:
            submission.announce()
            self._changed.notify_all()
        self._prune()

    def _prune(self) -> None:
        """Remove the copies of what has its verdict and can no longer be tested."""
        with self._keeping:
            with self._changed:
                decided = {grade.submission_id for grade in self._book.grades()}
                unwanted = decided - self._book.worth_keeping(self._metric)
            self._copies.remove(unwanted)

    def _take_up_leftovers(self) -> None:
        """What the last grader of this ledger did not come to: rows of complete copies, failed copies."""
        for submission in self._book.open():
            known = submission.snapshot
            if submission.number not in self._copies:
                self._settle_as_lost(submission, "interrupted while copying")
                continue
            found = self._copies.describe(submission.number)
            if known is None:
                self._recorder.row("copied", Copied(submission_id=submission.number, snapshot=found))
                submission.copied(found)
            elif known.digest != found.digest:
                self._settle_as_lost(submission, "the lab's copy was damaged while the run was interrupted")

    def _settle_as_lost(self, submission: Submission, reason: str) -> None:
        fault = InfrastructureError(reason)
        self._settle(submission, verdicts.refused(submission, fault, terms=self.terms))

    def _fail(self, error: PosttrainError) -> None:
        with self._changed:
            self._accepting = False
            if not self._stopping.is_set():
                self._failure = error
                logger.error("no further verdicts: %s", error)
            self._changed.notify_all()
        self._tell_waiting(error)

    def _tell_waiting(self, error: PosttrainError) -> None:
        with self._changed:
            for submission in self._book.open():
                submission.give_up(error)
