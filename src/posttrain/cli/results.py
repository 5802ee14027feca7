"""`posttrain results`: the table over runs."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from posttrain.cli.context import open_lab
from posttrain.cli.listing import read_record
from posttrain.cli.output import gain, points, print_json, print_table, printable, warn
from posttrain.core.errors import PosttrainError
from posttrain.core.runs import FormatControl, RunRequest
from posttrain.infra.durations import format_duration
from posttrain.reports.comparison import Group, best_controls, control_for, groups, lift, setting
from posttrain.reports.results import ResultRow, read_results
from posttrain.runs.history import Word
from posttrain.runs.lab import Lab
from posttrain.runs.words import read_word


def results(
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this base model.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="One line for all runs of an agent.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """The table over runs, with intervals and lifts.

    An improvement is the paired difference to the baseline on the same items, with its 95 % interval. The
    lift compares it with the best control agent of the same task, model, budget and protocol.
    """
    here = open_lab()
    found = read_results(here.paths.results_csv)
    for fault in found.faults:
        warn(fault)
    budgets = _budgets(here)
    controls = _controls(here)
    words, prompted = _words(here, found.rows), _prompted(here, found.rows)
    rows = tuple(_unscored(row) if _rejected(words, row) else row for row in found.rows)
    wanted = {"task": task, "agent": agent, "base_model": model}
    chosen = [
        row
        for row in rows
        if all(value is None or getattr(row, name) == value for name, value in wanted.items())
    ]
    if summary:
        every = groups(rows, controls=controls, budgets=budgets)
        shown = [
            group
            for group in every
            if all(value is None or getattr(group, name) == value for name, value in wanted.items())
        ]
        _print_groups(shown, as_json=as_json)
    else:
        _print_runs(
            chosen,
            rows,
            controls=controls,
            budgets=budgets,
            words=words,
            prompted=prompted,
            as_json=as_json,
        )


def _words(here: Lab, rows: tuple[ResultRow, ...]) -> dict[str, Word]:
    """What operators said about runs, by run id."""
    found: dict[str, Word] = {}
    for row in rows:
        paths = here.paths.find_run(row.run_id)
        word = None if paths is None else read_word(paths)
        if word is not None:
            found[row.run_id] = word
    return found


def _prompted(here: Lab, rows: tuple[ResultRow, ...]) -> dict[str, FormatControl]:
    """What a prompt alone gave the untouched base, by run id, where it was measured."""
    found: dict[str, FormatControl] = {}
    for row in rows:
        paths = here.paths.find_run(row.run_id)
        try:
            record = None if paths is None else read_record(paths)
        except (OSError, ValidationError):
            continue
        if record is not None and record.format_control is not None:
            found[row.run_id] = record.format_control
    return found


def _rejected(words: dict[str, Word], row: ResultRow) -> bool:
    return row.run_id in words and not words[row.run_id].accepted


def _unscored(row: ResultRow) -> ResultRow:
    """A rejected run is shown, compares with nothing and enters no mean."""
    nothing = dict.fromkeys(("best_score", "improvement", "ci_low", "ci_high", "test_score"))
    return row.model_copy(update={**nothing, "success": False})


def _budgets(here: Lab) -> dict[str, float]:
    """The time budget of every run whose request is still there."""
    found: dict[str, float] = {}
    for path in here.paths.runs.glob("*/*/request.json"):
        try:
            found[path.parent.name] = RunRequest.model_validate_json(path.read_bytes()).timeout_s
        except (OSError, ValidationError):
            continue
    return found


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


def _print_runs(
    chosen: list[ResultRow],
    every: tuple[ResultRow, ...],
    *,
    controls: set[str],
    budgets: dict[str, float],
    words: dict[str, Word],
    prompted: dict[str, FormatControl],
    as_json: bool,
) -> None:
    best = best_controls(every, controls=controls, budgets=budgets)
    lines = []
    for row in chosen:
        control = control_for(row, best, setting(row, budgets))
        lines.append((row, budgets.get(row.run_id), control, lift(row, control)))
    if as_json:
        print_json(
            [
                row.model_dump()
                | {"timeout_s": budget, "control": control, "lift": lifted, "verdict": words.get(row.run_id)}
                | {"format_control": prompted.get(row.run_id)}
                for row, budget, control, lifted in lines
            ]
        )
        return
    if not lines:
        print("no results yet")
        return
    columns = (
        "run",
        "task",
        "agent",
        "model",
        "baseline",
        "score",
        "improvement",
        "prompt alone",
        "lift",
        "n",
        "subs",
        "budget",
        "status",
        "marks",
    )
    print_table(
        columns,
        [
            (
                row.run_id,
                row.task,
                row.agent,
                row.base_model,
                points(row.baseline),
                points(row.best_score) or "not scored",
                gain(row.improvement, (row.ci_low, row.ci_high)),
                _prompt_alone(prompted.get(row.run_id)),
                f"{gain(lifted)} over {control.agent}" if control and lifted is not None else "",
                str(row.n or ""),
                str(row.submissions if row.submissions is not None else ""),
                format_duration(budget) if budget else "",
                row.status,
                _marks(row, words.get(row.run_id)),
            )
            for row, budget, control, lifted in lines
        ],
        right=("baseline", "score", "n", "subs"),
    )


def _prompt_alone(control: FormatControl | None) -> str:
    return "not measured" if control is None else gain(control.improvement.value)


def _marks(row: ResultRow, word: Word | None) -> str:
    """What weakens the result, as short as it can be said."""
    marks = []
    if word is not None:
        marks.append(f"{'accepted' if word.accepted else 'rejected'}: {printable(word.why)}")
    if row.isolation == "none":
        marks.append("isolation: none")
    if row.network == "host":
        marks.append("network: host")
    if row.protocol == "open":
        marks.append("open")
    return ", ".join(marks)


def _print_groups(shown: list[Group], *, as_json: bool) -> None:
    if as_json:
        print_json(shown)
        return
    if not shown:
        print("no results yet")
        return
    print_table(
        ("task", "model", "agent", "driver", "budget", "runs", "not scored", "improvement", "lift"),
        [
            (
                group.task,
                group.base_model,
                group.agent,
                group.driver_model,
                format_duration(group.timeout_s) if group.timeout_s else "",
                str(group.runs),
                str(group.not_scored or ""),
                _mean(group),
                f"{gain(group.lift)} over {group.control.agent}" if group.control else "",
            )
            for group in shown
        ],
        right=("runs", "not scored"),
    )


def _mean(group: Group) -> str:
    if group.improvement is None:
        return "not scored"
    spread = f" ± {group.spread:.1f}" if group.spread is not None else ""
    return gain(group.improvement) + spread
