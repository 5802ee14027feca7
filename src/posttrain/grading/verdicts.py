"""From what happened to a submission to the grade that stands in the ledger."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from posttrain.checkpoints.intake import printable
from posttrain.checkpoints.provenance import flags_of
from posttrain.checkpoints.snapshot import SnapshotLimits
from posttrain.core.errors import InfrastructureError, PosttrainError, SubmissionFault, Unloadable
from posttrain.core.grading import Assessment, Grade, LoadReport, Split, Verdict
from posttrain.core.scores import Evaluation
from posttrain.evaluators.improvement import identical, improvement
from posttrain.grading.book import Submission

COPY_OF_BASE = "copy_of_base"
FEW_ITEMS = 100


@dataclass(frozen=True)
class Terms:
    """What a run's submissions are held to."""

    split: Split
    """The split whose score `/submit` returns."""
    baseline: Evaluation
    """The base on that split."""
    limits: SnapshotLimits
    max_submissions: int
    gpus: tuple[str, ...] = ()
    max_waiting: int = 4


def graded(submission: Submission, assessment: Assessment, *, terms: Terms) -> Grade:
    """The grade of a checkpoint that was scored; a copy of the base improves by exactly nothing."""
    score, metric = assessment.evaluation.score, terms.baseline.score.metric
    copy = assessment.load is not None and assessment.load.copy_of_base
    gain = identical(score.n) if copy else improvement(metric, terms.baseline, assessment.evaluation)
    few = (f"only {score.n} items: small differences mean little",) if score.n < FEW_ITEMS else ()
    return _grade(
        submission,
        terms=terms,
        status=Verdict.GRADED,
        score=score,
        improvement=gain,
        load=_with_ignored(assessment.load, submission),
        flags=(COPY_OF_BASE,) if copy else flags_of(assessment.load.provenance if assessment.load else None),
        warnings=(*_request_warnings(submission, terms), *score.warnings, *few),
    )


def repeated(submission: Submission, earlier: Grade, *, terms: Terms) -> Grade:
    """The verdict of an earlier submission with equal content, under a number of its own."""
    taken = ("status", "score", "improvement", "load", "flags", "warnings", "error", "hint")
    verdict = {name: getattr(earlier, name) for name in taken}
    return _grade(submission, terms=terms, same_as=earlier.submission_id, **verdict)


def refused(submission: Submission, fault: PosttrainError, *, terms: Terms) -> Grade:
    """The verdict that blames the submission or, for any error that is not its own, the lab."""
    status, hint = Verdict.ERROR, getattr(fault, "hint", InfrastructureError.hint)
    if isinstance(fault, SubmissionFault):
        status = Verdict.UNLOADABLE if isinstance(fault, Unloadable) else Verdict.REJECTED
    return _grade(
        submission,
        terms=terms,
        status=status,
        error=printable(str(fault)) or type(fault).__name__,
        hint=printable(hint),
        warnings=_request_warnings(submission, terms),
    )


def _grade(submission: Submission, *, terms: Terms, **verdict: Any) -> Grade:
    accepted = submission.accepted
    return Grade(
        submission_id=accepted.submission_id,
        timestamp=accepted.timestamp,
        model_path=accepted.request.model_path,
        final=accepted.request.final,
        note=accepted.request.note,
        split=terms.split,
        baseline_score=terms.baseline.score.value,
        digest=None if submission.snapshot is None else submission.snapshot.digest,
        elapsed_seconds=round(time.monotonic() - submission.since, 3),
        **verdict,
    )


def _with_ignored(load: LoadReport | None, submission: Submission) -> LoadReport | None:
    """The load report with the names of what lay in the folder and was not copied."""
    if load is None or submission.snapshot is None or not submission.snapshot.ignored:
        return load
    note = f"not copied: {', '.join(submission.snapshot.ignored)}"
    return load.model_copy(update={"notes": (*load.notes, note)})


def _request_warnings(submission: Submission, terms: Terms) -> tuple[str, ...]:
    ignored = submission.accepted.request.gpu is not None and not terms.gpus
    return ("this lab has no GPU: `gpu` was ignored",) if ignored else ()
