"""Recomputing a run from what it left: its chain, and every number that was exported from it.

The ledger and the items of each grading are the source; scores, record, reports and the row in results.csv
must follow from them. That proves consistency: with a head kept elsewhere also that this is the run which
was written, without it not who wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from posttrain.core.errors import LedgerError, PosttrainError
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Assessment, Grade, Split
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import Result, RunPlan, RunRecord
from posttrain.core.scores import Evaluation, Improvement, ItemResult, Score
from posttrain.evaluators.aggregate import score_of
from posttrain.evaluators.improvement import best_of_k, identical, improvement, overfit
from posttrain.grading import ledger
from posttrain.grading.exports import score_entry
from posttrain.grading.verdicts import COPY_OF_BASE
from posttrain.grading.workers import read_items
from posttrain.infra.digests import digest_bytes
from posttrain.reports.metrics import RunMetrics, run_metrics
from posttrain.reports.results import read_results, result_row
from posttrain.runs.closing import plan_digest, record_of
from posttrain.runs.history import History, Measured
from posttrain.runs.inventory import mark, mark_of_prefix
from posttrain.runs.judging import FINAL

_CLOSE = 1e-9


class Check(Frozen):
    """One thing that was recomputed."""

    name: str
    detail: str
    """What was looked at."""
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.faults


def verify_run(paths: RunPaths, lab: LabPaths, *, head: str | None = None) -> tuple[Check, ...]:
    """All checks of a run. A broken chain ends them, since nothing after it means anything."""
    try:
        chain = ledger.verify(paths.ledger, head=head)
        history = History(ledger.read_rows(paths.ledger))
    except LedgerError as error:
        return (Check(name="chain", detail=str(paths.ledger), faults=(str(error),)),)
    kept = " as kept elsewhere" if head else ""
    checks = [Check(name="chain", detail=f"{chain.count} rows, head {chain.head}{kept}")]
    run = _Run(paths, lab, history)
    try:
        if run.plan is None:
            return (*checks, Check(name="plan", detail="the run ended before it had one"))
        return (*checks, *(_checked(name, look, run) for name, look in _CHECKS.items()))
    except (ValidationError, PosttrainError, OSError) as error:
        return (*checks, Check(name="files", detail=str(paths.root), faults=(_short(error),)))


@dataclass(frozen=True)
class _Run:
    """A run as its files have it."""

    paths: RunPaths
    lab: LabPaths
    history: History

    @cached_property
    def plan(self) -> RunPlan | None:
        if not self.paths.plan.exists():
            return None
        return RunPlan.model_validate_json(self.paths.plan.read_bytes())

    @cached_property
    def record(self) -> RunRecord | None:
        """None while the run goes on."""
        if not self.paths.record.exists():
            return None
        return RunRecord.model_validate_json(self.paths.record.read_bytes())

    @cached_property
    def baselines(self) -> dict[Split, Evaluation]:
        """The base's own evaluations, from the lab's cache."""
        found: dict[Split, Evaluation] = {}
        for row in self.history.rows:
            if row.kind == "baseline":
                measured = Measured.model_validate(row.data)
                path = self.lab.baselines / f"{measured.key}.json"
                assessment = Assessment.model_validate(json.loads(path.read_bytes())["assessment"])
                found[measured.split] = assessment.evaluation
        return found

    def items(self, label: int | str) -> tuple[ItemResult, ...]:
        return tuple(record.result for record in read_items(self.paths.grading_of(label)))


_Look = Callable[[_Run, RunPlan], tuple[str, Iterator[str]]]


def _checked(name: str, look: _Look, run: _Run) -> Check:
    """Run one check; a file that cannot be read is its fault."""
    assert run.plan is not None
    detail, found = look(run, run.plan)
    try:
        faults = tuple(found)
    except (OSError, ValueError, KeyError, TypeError) as error:  # ValidationError is a ValueError
        faults = (_short(error),)
    return Check(name=name, detail=detail, faults=faults)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


# --- the checks: what was looked at, and the faults


def _baseline(run: _Run, _plan: RunPlan) -> tuple[str, Iterator[str]]:
    def faults() -> Iterator[str]:
        for row in run.history.rows:
            if row.kind == "baseline":
                measured = Measured.model_validate(row.data)
                evaluation = run.baselines[measured.split]
                yield from _score_faults(
                    f"baseline {measured.split}", measured.score, evaluation.items, evaluation.score
                )

    return "scores of the base from its items", faults()


def _grades(run: _Run, plan: RunPlan) -> tuple[str, Iterator[str]]:
    graded = [grade for grade in run.history.grades if grade.score is not None]

    def faults() -> Iterator[str]:
        expected = {"val": plan.task.val, "test": plan.task.test}
        for grade in graded:
            name = f"submission {grade.submission_id}"
            items = run.items(grade.same_as or grade.submission_id)
            if tuple(item.id for item in items) != expected[grade.split]:
                yield f"{name}: its items are not those of the plan"
            assert grade.score is not None
            yield from _score_faults(name, grade.score, items, grade.score)
            yield from _gain_faults(name, grade.improvement, _gain(run, grade, items))

    return f"{len(graded)} graded submissions from their items", faults()


def _result(run: _Run, plan: RunPlan) -> tuple[str, Iterator[str]]:
    result = run.history.result
    if result is None:
        return "no result", iter(())
    if plan.request.protocol == "open":
        return "the best submission", _open_result(run, result)
    return "the final test from its items", _tested(run, result)


def _tested(run: _Run, result: Result) -> Iterator[str]:
    items = run.items(FINAL)
    yield from _score_faults("final test", result.score, items, result.score)
    base = run.baselines["test"]
    selected = next(g for g in run.history.grades if g.submission_id == result.submission_id)
    copied = COPY_OF_BASE in selected.flags
    gain = identical(base.score.n) if copied else _paired(base, result.score, items)
    yield from _gain_faults("final test", result.improvement, gain)
    if selected.improvement is not None:
        yield from _gain_faults("over-fit", result.overfit, overfit(selected.improvement, gain))


def _open_result(run: _Run, result: Result) -> Iterator[str]:
    scored = [g for g in run.history.grades if g.score is not None and g.same_as is None]
    base = run.baselines["test"]
    if all(COPY_OF_BASE in grade.flags for grade in scored):
        yield from _gain_faults("best of all", result.improvement, identical(base.score.n))
        return
    evaluations = [
        Evaluation(score=grade.score, items=run.items(grade.submission_id)) for grade in scored if grade.score
    ]
    best = best_of_k(result.score.metric, base, evaluations)
    yield from _gain_faults("best of all", result.improvement, best)


def _gain(run: _Run, grade: Grade, items: tuple[ItemResult, ...]) -> Improvement:
    base = run.baselines[grade.split]
    assert grade.score is not None
    if COPY_OF_BASE in grade.flags:
        return identical(base.score.n)
    return _paired(base, grade.score, items)


def _paired(base: Evaluation, score: Score, items: tuple[ItemResult, ...]) -> Improvement:
    return improvement(score.metric, base, Evaluation(score=score, items=items))


def _score_faults(name: str, told: Score, items: tuple[ItemResult, ...], full: Score) -> Iterator[str]:
    """Differences between a score and what its items come to."""
    made = score_of(items, metric=full.metric, macro=full.macro)
    pairs = {
        "value": (told.value, made.value),
        "stderr": (told.stderr, made.stderr),
        "interval (low)": (told.ci95[0], made.ci95[0]),
        "interval (high)": (told.ci95[1], made.ci95[1]),
    }
    if told.n != made.n:
        yield f"{name}: n is told as {told.n}, its items are {made.n}"
    for what, (said, found) in pairs.items():
        if abs(said - found) > _CLOSE:
            yield f"{name}: {what} is told as {said:.4f}, its items come to {found:.4f}"


def _gain_faults(name: str, told: Improvement | None, made: Improvement) -> Iterator[str]:
    if told is None or told.model_dump_json() != made.model_dump_json():
        said = "nothing" if told is None else f"{told.value:.4f} {told.ci95}"
        yield f"{name}: the improvement is told as {said}, its items come to {made.value:.4f} {made.ci95}"


def _exports(run: _Run, plan: RunPlan) -> tuple[str, Iterator[str]]:
    history = run.history

    def faults() -> Iterator[str]:
        entries = [score_entry(grade) for grade in history.grades]
        if entries and json.loads(run.paths.workspace.scores.read_bytes()) != entries:
            yield "scores.json does not follow from the ledger"
        for grade in history.grades:
            path = run.paths.grading_of(grade.submission_id) / "grade.json"
            if Grade.model_validate_json(path.read_bytes()) != grade:
                yield f"{path.relative_to(run.paths.root)} is not what the ledger says"
        if run.record is not None and history.times is not None:
            made = run_metrics(history.grades, plan=plan, record=run.record, times=history.times)
            if RunMetrics.model_validate_json(run.paths.metrics.read_bytes()) != made:
                yield "metrics.json does not follow from the ledger"

    return "scores.json, grade.json, metrics.json", faults()


def _record(run: _Run, plan: RunPlan) -> tuple[str, Iterator[str]]:
    record, closed = run.record, run.history.closed
    if record is None or closed is None:
        return "the run is not closed", iter(())

    def faults() -> Iterator[str]:
        # an operator's word may follow the closing row: the record speaks of the rows up to there
        rows = run.history.rows[: record.ledger_rows]
        made = record_of(
            plan,
            History(rows),
            closed=closed,
            ended=rows[-1].time if rows else "",
            head=_head_at(run.paths.ledger, record.ledger_rows),
            rows=len(rows),
        )
        told, found = record.model_dump(mode="json"), made.model_dump(mode="json")
        for name in told:
            if told[name] != found[name]:
                yield f"record.json: {name} does not follow from the ledger"
        if record.plan_digest != plan_digest(plan):
            yield "plan.json is not the plan that the record names"

    return "record.json, plan.json", faults()


def _head_at(path: Path, rows: int) -> str:
    """The hash of the line that was the last one when the ledger had so many rows."""
    with path.open("rb") as file:
        line = next(islice(file, rows - 1, rows), b"")
    return digest_bytes(line)


def _row(run: _Run, plan: RunPlan) -> tuple[str, Iterator[str]]:
    record = run.record
    if record is None:
        return "the run is not closed", iter(())

    def faults() -> Iterator[str]:
        found = [row for row in read_results(run.lab.results_csv).rows if row.run_id == plan.run_id]
        if len(found) != 1:
            yield f"results.csv has {len(found)} rows of this run"
            return
        told = found[0]
        made = result_row(
            plan, record, run.history.grades, driver=told.driver_model, workspace=Path(told.workspace)
        )
        for name, value in made:
            said = getattr(told, name)
            same = (
                abs(said - value) < 0.005 + _CLOSE
                if isinstance(value, float) and said is not None
                else said == value
            )
            if not same:
                yield f"results.csv: {name} is {said}, the record comes to {value}"

    return "the row in results.csv", faults()


def _files(run: _Run, _plan: RunPlan) -> tuple[str, Iterator[str]]:
    closed = run.history.closed
    if closed is None:
        return "the run is not closed", iter(())

    def faults() -> Iterator[str]:
        for name, kept in closed.files.items():
            path = run.paths.root / name
            if path == run.paths.run_log and path.is_file():
                found = mark_of_prefix(path, int(kept.split(":")[0]))
            else:
                found = mark(path)
            if found != kept:
                yield f"{name} is missing" if found == "missing" else f"{name} is not what it was at the end"

    return f"{len(closed.files)} files as they were at the end", faults()


_CHECKS: dict[str, _Look] = {
    "baseline": _baseline,
    "grades": _grades,
    "result": _result,
    "exports": _exports,
    "record": _record,
    "results": _row,
    "files": _files,
}
