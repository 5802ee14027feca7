"""`posttrain results`: the table over runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from posttrain.cli.context import open_lab
from posttrain.cli.output import gain, one_line, points, print_json, print_table, warn
from posttrain.cli.results_data import groups_as_csv, run_as_data, runs_as_csv
from posttrain.core.errors import PosttrainError, UsageError
from posttrain.core.runs import FormatControl, Mode, Status
from posttrain.infra.durations import format_duration, parse_duration
from posttrain.reports.comparison import Control, Controls, Entry, Group, Mean, groups, lift, setting
from posttrain.reports.filters import Filters, parse_moment
from posttrain.reports.results import ResultRow, read_results
from posttrain.runs.lab import Lab
from posttrain.runs.survey import survey

Form = Literal["table", "json", "csv"]


def results(
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be given again.")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="Only this agent; may be given again.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only this base model; may be given again.")] = None,
    protocol: Annotated[Mode | None, typer.Option(help="Only this protocol.")] = None,
    status: Annotated[list[Status] | None, typer.Option(help="Only runs that ended so.")] = None,
    budget: Annotated[list[str] | None, typer.Option(help="Only this budget, such as 4m or 12h.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only later runs: 2026-11-29, '2026-11-29 20:00', 90m, 12h, 7d.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only earlier runs.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            help="Read this results.csv, AutoRL-Bench's too, instead of the lab's; may be given again."
        ),
    ] = None,
    runs: Annotated[bool, typer.Option("--runs", help="One line a run instead of one an agent.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="The table as CSV on standard output.")] = False,
) -> None:
    """The table over runs, with intervals and lifts.

    One line an agent, in each setting: task, base model, budget, protocol, items and engine. The improvement
    is the mean over its runs with the 95 % t-interval; of one run alone, the interval over items. The lift
    compares it with the best control of the same setting. Names may have * and ?.
    """
    if as_json and as_csv:
        raise UsageError("--json, --csv: one of them")
    form: Form = "json" if as_json else "csv" if as_csv else "table"
    filters = _filters(
        task=task,
        agent=agent,
        model=model,
        protocol=protocol,
        status=status,
        budget=budget,
        since=since,
        until=until,
    )
    here = open_lab()
    known = survey(here.paths, _rows(here, file))
    entries = tuple(entry for entry in known if filters.keeps(entry))
    controls = Controls(entries, names=_controls(here))
    nothing = "no results yet" if not known else f"none of {len(known)} runs is asked for"
    if runs:
        _print_runs([e for e in entries if filters.shows(e.row.agent)], controls, form=form, nothing=nothing)
    else:
        shown = [group for group in groups(entries, controls=controls) if filters.shows(group.agent)]
        _print_groups(shown, form=form, nothing=nothing)


def _filters(
    *,
    task: Sequence[str] | None,
    agent: Sequence[str] | None,
    model: Sequence[str] | None,
    protocol: Mode | None,
    status: Sequence[Status] | None,
    budget: Sequence[str] | None,
    since: str | None,
    until: str | None,
) -> Filters:
    now = datetime.now()  # noqa: DTZ005 - rows are in local time
    return Filters(
        tasks=tuple(task or ()),
        agents=tuple(agent or ()),
        models=tuple(model or ()),
        protocol=protocol,
        statuses=tuple(found.value for found in status or ()),
        budgets=tuple(parse_duration(text, field="--budget") for text in budget or ()),
        since=None if since is None else parse_moment(since, field="--since", now=now),
        until=None if until is None else parse_moment(until, field="--until", now=now),
    )


def _rows(here: Lab, files: Sequence[Path] | None) -> list[ResultRow]:
    """The rows of the lab's file or of those that were named; lines that are none are told."""
    rows: list[ResultRow] = []
    for path in files or [here.paths.results_csv]:
        if files and not path.is_file():
            raise UsageError(f"--file: {path} is no file")
        try:
            found = read_results(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        for fault in found.faults:
            warn(one_line(fault))
        rows += found.rows
    return rows


def _controls(here: Lab) -> set[str]:
    """Agents that call themselves a control arm."""
    found = set()
    for name in here.agents.names():
        try:
            if here.agents.load(name).control:
                found.add(name)
        except PosttrainError:
            continue
    return found


def _print_groups(shown: Sequence[Group], *, form: Form, nothing: str) -> None:
    if form == "json":
        print_json(list(shown))
    elif form == "csv":
        print(groups_as_csv(shown), end="")
    elif not shown:
        print(nothing)
    else:
        columns = ("task", "model", "budget", "protocol", "n", "agent", "runs", "baseline", "score")
        more = ("improvement", "lift", "prompt alone", "over-fit", "verdicts", "marks")
        print_table(
            (*columns, *more), [_line(group) for group in shown], right=("n", "runs", "baseline", "score")
        )


def _line(group: Group) -> tuple[str, ...]:
    driver = "" if group.driver_model in ("", "unknown") else f" ({group.driver_model})"
    return tuple(
        one_line(cell)
        for cell in (
            group.task,
            group.base_model,
            format_duration(group.timeout_s) if group.timeout_s else "",
            group.protocol,
            str(group.n or ""),
            f"{group.agent}{driver}{' *' if group.is_control else ''}",
            _run_count(group),
            points(group.baseline),
            points(group.score),
            _gained(group),
            _lifted(group.lift, group.control, group.lift_interval),
            "not measured" if group.format_control is None else gain(group.format_control.mean),
            _overfit(group.overfit),
            ", ".join(f"{count} {name}" for name, count in group.verdicts.items()),
            ", ".join(_mark(mark, count, group.runs) for mark, count in group.marks.items()),
        )
    )


def _run_count(group: Group) -> str:
    parts = [str(group.runs)]
    unscored = group.not_scored - group.rejected
    parts += [f"{unscored} not scored"] if unscored else []
    parts += [f"{group.rejected} rejected"] if group.rejected else []
    return ", ".join(parts)


def _gained(group: Group) -> str:
    """The mean with its interval over runs; of one run alone that over items, said so."""
    if group.improvement is None:
        return "not scored"
    if group.interval is not None:
        return gain(group.improvement, group.interval)
    ends = (
        "" if group.item_interval is None else f", items{gain(0.0, group.item_interval).removeprefix('+0.0')}"
    )
    return f"{gain(group.improvement)} (1 run{ends})"


def _lifted(value: float | None, control: Control | None, interval: tuple[float, float] | None = None) -> str:
    return "" if control is None or value is None else f"{gain(value, interval)} over {control.agent}"


def _overfit(mean: Mean | None) -> str:
    return "" if mean is None else gain(mean.mean, mean.interval)


def _mark(mark: str, count: int, runs: int) -> str:
    return mark if count == runs else f"{mark} ({count})"


def _print_runs(shown: Sequence[Entry], controls: Controls, *, form: Form, nothing: str) -> None:
    lines = [(entry, _control(entry, controls)) for entry in shown]
    if form == "json":
        print_json([run_as_data(entry, control) for entry, control in lines])
    elif form == "csv":
        print(runs_as_csv(lines), end="")
    elif not lines:
        print(nothing)
    else:
        columns = ("run", "task", "agent", "model", "baseline", "score", "improvement", "prompt alone")
        more = ("lift", "n", "subs", "budget", "status", "marks")
        print_table(
            (*columns, *more),
            [_run_line(entry, control) for entry, control in lines],
            right=("baseline", "score", "n", "subs"),
        )


def _control(entry: Entry, controls: Controls) -> Control | None:
    found = controls.best(entry.row.agent, setting(entry))
    return None if found is None else found[0]


def _run_line(entry: Entry, control: Control | None) -> tuple[str, ...]:
    row, facts = entry.row, entry.facts
    said = f"{'accepted' if facts.accepted else 'rejected'}: {facts.why}"
    marks = [mark for mark in entry.marks if not mark.endswith("by the operator")]
    return tuple(
        one_line(cell)
        for cell in (
            row.run_id,
            row.task,
            row.agent,
            row.base_model,
            points(row.baseline),
            "not scored" if entry.improvement is None else points(row.best_score),
            gain(entry.improvement, entry.interval),
            _prompt_alone(facts.format_control),
            _lifted(lift(entry, control), control),
            str(row.n or ""),
            str(row.submissions if row.submissions is not None else ""),
            format_duration(facts.timeout_s) if facts.timeout_s else "",
            row.status,
            ", ".join([said, *marks] if facts.accepted is not None else marks),
        )
    )


def _prompt_alone(control: FormatControl | None) -> str:
    return "not measured" if control is None else gain(control.improvement.value)
