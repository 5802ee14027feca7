"""Step 9: one submission is selected and held, once, against the split that is reported."""

from __future__ import annotations

from collections.abc import Mapping

from posttrain.core.errors import InfrastructureError, SubmissionFault
from posttrain.core.grading import Assessment, Grade, Split
from posttrain.core.runs import Result
from posttrain.core.scores import Evaluation, Improvement
from posttrain.evaluators.improvement import best_of_k, identical, improvement, overfit
from posttrain.grading.grader import Grader
from posttrain.grading.verdicts import COPY_OF_BASE
from posttrain.runs.assessing import assess, read_evaluation
from posttrain.runs.selection import Selected, select
from posttrain.runs.session import Session

FINAL = "final-test"


def judge(session: Session, grader: Grader, baselines: Mapping[Split, Assessment]) -> Result | None:
    """The result of a run whose agent is gone and whose queue is empty; None if nothing was graded."""
    metric, mode = session.prepared.task.metric, session.plan.request.protocol
    contaminated = "val_contaminated" in session.history.audit_flags
    chosen = select(grader.grades, metric=metric, mode=mode, val_contaminated=contaminated)
    if chosen is None:
        session.tell("nothing was graded")
        return None
    if session.history.selected != chosen.grade.submission_id:
        session.ledger.append("selected", {"submission_id": chosen.grade.submission_id, "rule": chosen.rule})
    session.tell(f"submission {chosen.grade.submission_id} is selected ({chosen.rule})")
    if mode == "open":
        result = _best_of(session, chosen, grader.grades, baselines["test"])
    else:
        result = _tested(session, chosen, grader, baselines)
    session.ledger.append("tested", result)
    return result


def _tested(
    session: Session, chosen: Selected, grader: Grader, baselines: Mapping[Split, Assessment]
) -> Result:
    base = baselines["test"].evaluation
    evaluation = _test(session, chosen.grade, grader, baselines["test"])
    if COPY_OF_BASE in chosen.grade.flags:
        gain = identical(base.score.n)
    else:
        gain = improvement(session.prepared.task.metric, base, evaluation)
    return Result(
        split="test",
        submission_id=chosen.grade.submission_id,
        score=evaluation.score,
        baseline=base.score,
        improvement=gain,
        val_score=chosen.grade.value,
        val_baseline=baselines["val"].evaluation.score.value,
        overfit=None if chosen.grade.improvement is None else overfit(chosen.grade.improvement, gain),
        selection=chosen.rule,
        flags=chosen.grade.flags,
    )


def _test(session: Session, grade: Grade, grader: Grader, baseline: Assessment) -> Evaluation:
    """One grading on test by a fresh worker. What could be graded before and can't be now is our fault."""
    folder = grader.copy_of(grade)
    with session.terminal.progress("final test") as progress, session.signals.interruptible():
        try:
            graded = assess(session, "test", folder, label=FINAL, progress=progress, baseline=baseline)
        except SubmissionFault as fault:
            raise InfrastructureError(f"final test of submission {grade.submission_id}: {fault}") from fault
    return graded.evaluation


def _best_of(session: Session, chosen: Selected, grades: tuple[Grade, ...], baseline: Assessment) -> Result:
    """Under `open` the best test score counts; its interval knows that it was chosen."""
    score = chosen.grade.score
    assert score is not None
    return Result(
        split="test",
        submission_id=chosen.grade.submission_id,
        score=score,
        baseline=baseline.evaluation.score,
        improvement=_gain_of_best(session, grades, baseline),
        selection=chosen.rule,
        flags=chosen.grade.flags,
    )


def _gain_of_best(session: Session, grades: tuple[Grade, ...], baseline: Assessment) -> Improvement:
    graded = [grade for grade in grades if grade.score is not None and grade.same_as is None]
    if all(COPY_OF_BASE in grade.flags for grade in graded):
        return identical(baseline.evaluation.score.n)
    evaluations = [read_evaluation(session.paths, grade) for grade in graded]
    return best_of_k(session.prepared.task.metric, baseline.evaluation, evaluations)
