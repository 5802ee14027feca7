"""What a page about a run shows, read from the run's files: text for `posttrain report html`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from posttrain import __version__
from posttrain.cli.output import gain, points
from posttrain.cli.show import (
    SUBMISSION_COLUMNS,
    SUBMISSION_NUMBERS,
    Shown,
    read_model,
    submission_line,
    told_facts,
)
from posttrain.core.errors import UsageError
from posttrain.core.paths import RunPaths
from posttrain.core.runs import RunPlan, RunRecord, Status
from posttrain.grading.witness import read_report
from posttrain.infra.durations import format_duration
from posttrain.reports.figures import Trajectory, trajectory
from posttrain.reports.metrics import run_metrics
from posttrain.reports.page import Page, Table, Text
from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.findings import RULES, SummaryCheck
from posttrain.reports.summary import MARKDOWN, ROWS
from posttrain.reports.tails import read_tail
from posttrain.runs.folder import worked_on
from posttrain.runs.history import History
from posttrain.runs.reporting import read_facts, read_history, told

_LOG_BYTES = 128 << 10
_SUMMARY_BYTES = 1 << 20


def run_page(shown: Shown) -> Page:
    """The page of a run, finished or not."""
    paths, plan, request = shown.paths, shown.plan, shown.request
    history = read_history(paths, shown.record)
    record = shown.record or _unfinished(paths, history)
    numbers = None if plan is None else _numbers(history, plan, record)
    check = _check(paths)
    start = history.started_at or record.started
    lines = [submission_line(grade, start, paths.workspace.root) for grade in shown.grades]
    return Page(
        run_id=paths.run_id,
        title=f"{request.agent} on {request.task} with {_model_name(request.model)}",
        status=record.status.value,
        made=f"run {paths.run_id}; page made {_now()} by posttrain {__version__}",
        headline=_headline(record),
        facts=tuple(fact for fact in told_facts(shown) if fact[0] != "run"),
        marks=record.marks,
        figure=numbers[0] if numbers else None,
        submissions=Table(SUBMISSION_COLUMNS, tuple(map(tuple, lines)), SUBMISSION_NUMBERS),
        check=None if check is None else _findings(check),
        check_said=_said(check, record),
        summary=_summary(paths),
        metrics=tuple(_named(numbers[1])) if numbers else (),
        plan=() if plan is None else tuple(fact for fact in _planned(plan) if fact[1]),
        logs=tuple(_logs(paths)),
    )


def _numbers(
    history: History, plan: RunPlan, record: RunRecord
) -> tuple[Trajectory, Mapping[str, Any]] | None:
    """Figure and metrics as they follow from the ledger; None before the agent's time has begun."""
    times = history.times
    if times is None:
        return None
    grades = history.timed_grades
    figure = trajectory(grades, plan=plan, record=record, start_time=times.start)
    metrics = run_metrics(grades, plan=plan, record=record, times=times)
    return figure, metrics.model_dump(mode="json")


def _unfinished(paths: RunPaths, history: History) -> RunRecord:
    """What stands for the record of a run that has none yet, or whose harness died."""
    begun = history.rows[0].time if history.rows else _now()
    return RunRecord(
        run_id=paths.run_id,
        plan_digest="",
        status=Status.RUNNING if worked_on(paths) else Status.INTERRUPTED,
        started=history.started_at or begun,
        ended=begun,
        duration_s=0.0,
        val_baseline=history.baseline("val"),
        test_baseline=history.baseline("test"),
        ledger_head="",
        ledger_rows=len(history.rows),
    )


def _headline(record: RunRecord) -> str:
    result = record.result
    if record.status is Status.RUNNING:
        return "not finished"
    if not record.ledger_head:
        return "not finished, and nobody works on it: posttrain run --resume goes on"
    if result is None:
        return "not scored" + (f": {record.reason}" if record.reason else "")
    improved = gain(result.improvement.value, result.improvement.ci95)
    scores = f"{points(result.baseline.value)} → {points(result.score.value)}"
    return f"{improved} points on {result.score.n} {result.split} items: {scores}"


def _model_name(model: str) -> str:
    """A local folder is named by its last part."""
    return Path(model).name if model.startswith("/") else model


def _check(paths: RunPaths) -> SummaryCheck | None:
    """What the check found at the end of the run; while it goes on, what it finds now."""
    kept = read_model(paths.summary_check, SummaryCheck)
    if kept is not None:
        return kept
    try:
        markdown, rows = (read_report(paths.workspace, name) for name in (MARKDOWN, ROWS))
        return None if markdown is None else check_summary(markdown, rows, read_facts(paths))
    except UsageError:  # it ended before there was anything to check
        return None


def _said(check: SummaryCheck | None, record: RunRecord) -> str:
    if record.report is not None:
        return told(record.report)
    if check is None:
        return "The summary was not checked."
    return f"so far {check.iterations} iterations, {len(check.findings)} findings"


def _findings(check: SummaryCheck) -> Table:
    rows = tuple(
        (f"{found.file}:{found.line}", found.rule, RULES.get(found.rule, ""), found.message, found.remedy)
        for found in check.findings
    )
    return Table(("where", "rule", "which says", "finding", "remedy"), rows)


def _summary(paths: RunPaths) -> Text | None:
    """The copy that the lab made, else the agent's own file as it stands."""
    for root, relative in ((paths.reports, MARKDOWN), (paths.workspace.root, f"reports/{MARKDOWN}")):
        found = read_tail(root, relative, most=_SUMMARY_BYTES)
        if found is not None:
            return Text(MARKDOWN, found.content, found.left_out)
    return None


def _logs(paths: RunPaths) -> Iterator[Text]:
    for log in (paths.run_log, paths.agent_log):
        found = read_tail(paths.root, log.name, most=_LOG_BYTES)
        if found is not None:
            yield Text(log.name, found.content, found.left_out)


def _planned(plan: RunPlan) -> Iterator[tuple[str, str]]:
    """What decides the result; no item and no name of this machine."""
    request, task, model = plan.request, plan.task, plan.model
    yield "posttrain", plan.version
    yield "libraries", ", ".join(f"{name} {version}" for name, version in plan.libraries.items())
    yield "task", f"{task.id}, digest {task.digest}"
    yield "items", f"{task.visible} visible, {len(task.val)} validation, {len(task.test)} test"
    yield "model", f"{_model_name(model.id)} ({model.source}), digest {model.digest}"
    yield "agent", f"{request.agent}, digest {plan.agent_digest}"
    yield "protocol", f"{request.protocol}, at most {request.max_submissions} submissions"
    yield "budget", format_duration(request.timeout_s)
    yield "seed", str(plan.seed)
    yield "prompt", f"{plan.prompt.style}: {plan.prompt.template}"
    yield "generation", _told(plan.generation.model_dump(mode="json"))
    yield "numeric plan", _told(plan.numeric.model_dump(mode="json"))
    yield "isolation", f"{plan.isolation}, network {plan.network}, kill {plan.kill}"
    yield "rules", plan.rules_hash


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, [], {}))


def _named(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in metrics.items():
        yield name.replace("_", " "), _metric(value)


def _metric(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_metric, value)) or "none"
    if isinstance(value, dict):
        if "ci95" in value:
            return gain(value["value"], value["ci95"])
        return _told(value) or "none"
    return str(value)


def _now() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
