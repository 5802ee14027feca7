"""Recomputing a run from what it left: its chain, and every number that was exported from it.

The ledger and the items of each grading are the source; scores, record, reports and the row in results.csv
must follow from them. That proves consistency: with a head kept elsewhere also that this is the run which
was written, without it not who wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from posttrain import __version__
from posttrain.core.errors import LedgerError, PosttrainError
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Assessment, Grade, Split
from posttrain.core.paths import GradingFolder, LabPaths, RunPaths
from posttrain.core.runs import Result, RunPlan, RunRecord
from posttrain.core.scores import Evaluation, Improvement, ItemResult, Score
from posttrain.evaluators.aggregate import score_of
from posttrain.evaluators.improvement import best_of_k, identical, improvement, overfit
from posttrain.grading import ledger
from posttrain.grading.exam import read_items
from posttrain.grading.exports import score_entry
from posttrain.grading.verdicts import COPY_OF_BASE
from posttrain.infra.digests import digest_bytes, digest_value
from posttrain.infra.files import as_json
from posttrain.reports.metrics import RunMetrics, run_metrics
from posttrain.reports.results import read_results, result_row
from posttrain.reports.summaries.findings import SummaryCheck
from posttrain.runs.clock import ClockState
from posttrain.runs.closing import closing_record, head_line, plan_digest
from posttrain.runs.history import History, Measured
from posttrain.runs.inventory import size_of, take_inventory
from posttrain.runs.judging import FINAL
from posttrain.runs.log import log_line
from posttrain.runs.reporting import facts_for, facts_of, kept_check, report_of

_CLOSE = 1e-9
_AFTERWARDS = ("verdict", "event")
"""Rows that may follow the one that closed a run."""
_CLOCK_SLACK_S = 1.0
_RUN_DEPTH = 4
"""runs/<task>/<run_id>/workspace"""


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
    """All checks of a run. A broken chain ends them, since nothing after it means anything.

    `head` is a hash that the ledger had once, kept elsewhere: at the end of the run, or before an
    operator's later words.
    """
    try:
        chain = ledger.verify(paths.ledger)
        run = _Run(paths, lab, History(ledger.read_rows(paths.ledger)))
        _check_rows(run)
        kept = _kept(run, chain.head, head)
        checks = [Check(name="chain", detail=f"{chain.count} rows, head {chain.head}{kept}")]
    except LedgerError as error:
        return (Check(name="chain", detail=str(paths.ledger), faults=(f"{paths.ledger.name}: {error}",)),)
    except (ValueError, OSError) as error:
        return (Check(name="record", detail=str(paths.record), faults=(_short(error),)),)
    try:
        if run.plan is None:
            lost = ("plan.json is missing",) if run.history.rows else ()
            return (*checks, Check(name="plan", detail="no plan", faults=lost))
        return (*checks, *(_checked(name, look, run) for name, look in _CHECKS.items()))
    except (ValueError, PosttrainError, OSError) as error:
        return (*checks, Check(name="files", detail=str(paths.root), faults=(_short(error),)))


def _check_rows(run: _Run) -> None:
    """LedgerError for rows that do not hold what their kind does, or that only record.json knows."""
    run.history.check()
    if run.paths.record.exists():
        named = run.record
        if named is not None and run.heads[named.ledger_rows - 1 : named.ledger_rows] != (named.ledger_head,):
            raise LedgerError(f"it does not hold the {named.ledger_rows} rows that record.json names")


def _kept(run: _Run, found: str, head: str | None) -> str:
    """Words on a head kept elsewhere; LedgerError if the ledger never had it, or went on since."""
    if head is None:
        return ""
    if head not in run.heads:
        raise LedgerError(f"the head is {found}, expected {head}")
    later = run.history.rows[run.heads.index(head) + 1 :]
    if any(row.kind not in _AFTERWARDS for row in later):
        raise LedgerError(f"the head is {found}, expected {head}, after which {len(later)} rows follow")
    return " as kept elsewhere" + (f", and {len(later)} rows said since" if later else "")


@dataclass(frozen=True)
class _Run:
    """A run as its files have it."""

    paths: RunPaths
    lab: LabPaths
    history: History

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """The hash of every line, the head that the ledger had when it was written."""
        return tuple(digest_bytes(line) for line in self.paths.ledger.read_bytes().splitlines(keepends=True))

    @cached_property
    def plan(self) -> RunPlan | None:
        if not self.paths.plan.exists():
            return None
        return _read(RunPlan, self.paths.plan)

    @cached_property
    def record(self) -> RunRecord | None:
        """None while the run goes on."""
        if not self.paths.record.exists():
            return None
        return _read(RunRecord, self.paths.record)

    @cached_property
    def made(self) -> RunRecord | None:
        """The record that the ledger comes to; None while the run goes on."""
        closing = self.history.closing
        if self.plan is None or closing is None:
            return None
        return closing_record(self.plan, closing, head=self.heads[len(closing.rows) - 1])

    @cached_property
    def baselines(self) -> dict[Split, Evaluation]:
        """The base's own evaluations, from the lab's cache."""
        found: dict[Split, Evaluation] = {}
        for row in self.history.rows:
            if row.kind == "baseline":
                measured = Measured.model_validate(row.data)
                found[measured.split] = self.assessed(measured.key).evaluation
        return found

    def assessed(self, key: str) -> Assessment:
        """What was measured of the base, from the lab's cache."""
        path = self.lab.baselines / f"{key}.json"
        return Assessment.model_validate(json.loads(path.read_bytes())["assessment"])

    def items(self, label: int | str) -> tuple[ItemResult, ...]:
        return tuple(record.result for record in read_items(self.paths.grading_of(label)))


_Read = TypeVar("_Read", bound=Frozen)
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


def _read(kind: type[_Read], path: Path) -> _Read:
    """A file as a model; ValueError names the file."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path.name} cannot be read: {_short(error)}") from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


# --- the checks: what was looked at, and the faults


def _baseline(run: _Run, _plan: RunPlan) -> tuple[str, Iterator[str]]:
    def faults() -> Iterator[str]:
        for row in run.history.rows:
            if row.kind == "baseline":
                measured = Measured.model_validate(row.data)
                evaluation = run.baselines[measured.split]
                if measured.digest and measured.digest != digest_value(evaluation):
                    yield f"baselines/{measured.key}.json is not what the ledger says"
                yield from _score_faults(
                    f"baseline {measured.split}", measured.score, evaluation.items, evaluation.score
                )

    return "scores of the base from its items", faults()


def _control(run: _Run, _plan: RunPlan) -> tuple[str, Iterator[str]]:
    measured = run.history.control
    if measured is None:
        return "what a prompt alone gives was not measured", iter(())

    def faults() -> Iterator[str]:
        evaluation, told = run.assessed(measured.key).evaluation, measured.control
        if measured.digest != digest_value(evaluation):
            yield f"baselines/{measured.key}.json is not what the ledger says"
        yield from _score_faults("a prompt alone", told.score, evaluation.items, evaluation.score)
        made = _paired(run.baselines[told.split], told.score, evaluation.items)
        yield from _gain_faults("a prompt alone", told.improvement, made)

    return f"the base under {measured.control.task} from its items", faults()


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
            path = GradingFolder(run.paths.grading_of(grade.submission_id)).grade
            if _read(Grade, path) != grade:
                yield f"{path.relative_to(run.paths.root)} is not what the ledger says"
        if run.record is not None and history.times is not None:
            made = run_metrics(history.timed_grades, plan=plan, record=run.record, times=history.times)
            if _read(RunMetrics, run.paths.metrics) != made:
                yield "metrics.json does not follow from the ledger"

    return "scores.json, grade.json, metrics.json", faults()


def _record(run: _Run, plan: RunPlan) -> tuple[str, Iterator[str]]:
    closing = run.history.closing
    if closing is None:
        return "the run is not closed", iter(())

    def faults() -> Iterator[str]:
        opened = run.history.opened
        if opened is None or opened.data.get("plan") != plan_digest(plan):
            yield "plan.json is not the plan that the run began with"
        for row in run.history.rows[len(closing.rows) :]:
            if row.kind not in _AFTERWARDS:
                yield f"ledger.jsonl: a row {row.kind!r} after the end"
        if run.record is None:
            yield "record.json is missing; if the lab died while closing, --resume writes it"
            return
        made = run.made
        assert made is not None
        told, found = run.record.model_dump(mode="json"), made.model_dump(mode="json")
        for name in told:
            if told[name] != found[name]:
                yield f"record.json: {name} does not follow from ledger.jsonl"
        if run.paths.record.read_text("utf-8") != as_json(json.loads(run.paths.record.read_bytes())):
            yield "record.json was not written by the lab as it stands"

    return "record.json, plan.json", faults()


def _report(run: _Run, _plan: RunPlan) -> tuple[str, Iterator[str]]:
    closing = run.history.closing
    kept = None if closing is None else closing.kept_report
    if closing is None or kept is None:
        return "no summary was checked", iter(())

    same_rules = kept.version == __version__

    def faults() -> Iterator[str]:
        written = _read(SummaryCheck, run.paths.summary_check)
        if digest_value(written) != kept.digest or report_of(written, by=kept.report.by) != kept.report:
            yield "check.json is not what the ledger says of the check"
        facts = facts_for(facts_of(run.paths, closing), by=kept.report.by)
        if same_rules and kept_check(run.paths, facts) != written:
            yield "reports/: the check of the summary does not come to what check.json says"

    what = f"the check of {kept.report.iterations} iterations"
    return what if same_rules else f"{what}, by rules of another version of posttrain", faults()


def _clock(run: _Run, _plan: RunPlan) -> tuple[str, Iterator[str]]:
    closed = run.history.closed
    if closed is None or run.history.agent_end is None:
        return "the agent's time has not ended", iter(())

    def faults() -> Iterator[str]:
        state = _read(ClockState, run.paths.clock)
        if abs(state.used_s - closed.used_s) > _CLOCK_SLACK_S:
            yield f"clock.json: {state.used_s:.1f} s were used, ledger.jsonl says {closed.used_s:.1f} s"

    return "clock.json", faults()


def _row(run: _Run, plan: RunPlan) -> tuple[str, Iterator[str]]:
    record = run.record
    if record is None:
        return "the run is not closed", iter(())

    def faults() -> Iterator[str]:
        found = [row for row in read_results(run.lab.results_csv).rows if row.run_id == plan.run_id]
        if len(found) != 1:
            yield f"results.csv has {len(found)} rows of this run"
            return
        closed, told = run.history.closed, found[0]
        driver = closed.driver if closed is not None else told.driver_model
        made = result_row(plan, record, run.history.grades, driver=driver, workspace=run.paths.workspace.root)
        for name, value in made:
            if not _same_cell(name, getattr(told, name), value):
                yield f"results.csv: {name} is {getattr(told, name)}, the record comes to {value}"

    return "the row in results.csv", faults()


def _same_cell(name: str, told: object, made: object) -> bool:
    """Numbers are kept with two decimals; a workspace lies where the lab home was then."""
    if isinstance(told, float) and isinstance(made, float):
        return abs(told - made) < 0.005 + _CLOSE
    if name == "workspace":
        return Path(str(told)).parts[-_RUN_DEPTH:] == Path(str(made)).parts[-_RUN_DEPTH:]
    return told == made


def _files(run: _Run, _plan: RunPlan) -> tuple[str, Iterator[str]]:
    closed = run.history.closed
    if closed is None:
        return "the run is not closed", iter(())

    def faults() -> Iterator[str]:
        kept = dict(closed.files)
        found = take_inventory(run.paths)
        name = run.paths.run_log.name
        if name in kept and found.pop(name, None) is not None and not _log_goes_on(run, kept.pop(name)):
            yield f"{name} is not what it was at the end"
        yield from (f"{name} is missing" for name in sorted(kept.keys() - found.keys()))
        yield from (f"{name} was not there at the end" for name in sorted(found.keys() - kept.keys()))
        both = sorted(kept.keys() & found.keys())
        yield from (f"{name} is not what it was at the end" for name in both if kept[name] != found[name])

    return f"{len(closed.files)} files as they were at the end", faults()


def _log_goes_on(run: _Run, kept: str) -> bool:
    """Whether run.log is what it was when the inventory was taken, and the line with the head after it."""
    content, size = run.paths.run_log.read_bytes(), size_of(kept)
    if run.made is None or f"{size}:{digest_bytes(content[:size])}" != kept:
        return False
    written = log_line(head_line(run.made), at=datetime.fromisoformat(run.made.ended))
    return content[size:] == written.encode()


_CHECKS: dict[str, _Look] = {
    "baseline": _baseline,
    "control": _control,
    "grades": _grades,
    "result": _result,
    "exports": _exports,
    "record": _record,
    "report": _report,
    "clock": _clock,
    "results": _row,
    "files": _files,
}
