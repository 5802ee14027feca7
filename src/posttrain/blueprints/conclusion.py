"""Sentences that the numbers bear out, and no others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from posttrain.blueprints.detect import Fault
from posttrain.blueprints.metrics import MetricRow
from posttrain.blueprints.outcome import Outcome
from posttrain.blueprints.plateau import standard_error
from posttrain.blueprints.report import Report
from posttrain.infra.durations import format_duration

_CLEAR = 2.0
"""A difference of so many standard errors is called one."""
_SOON_S = 60.0
_REASONS = {
    "finished": "The command ended by itself with exit code 0",
    "plateau": "The evaluations had stopped changing, so the run was ended",
    "time_limit": "The time limit ended the run",
    "user": "The run was stopped by a user",
    "session_lost": "The run ended because its tmux session or server was closed",
    "interrupted": "The run was interrupted in its session",
    "daemonised": "The command returned while a process that it had left behind was still working; that "
    "process was ended, so the experiment has not been done",
    "launch_error": "The command could not be started",
    "service_failed": "The service that the experiment needs did not get ready",
    "invalid": "The blueprint cannot be run",
    "lost": "The process that ran the command disappeared without a word",
}


def conclusion(report: Report) -> list[str]:
    """What happened, how far it got, and what the measured values say."""
    return [*_course(report), *_values(report)]


def _course(report: Report) -> Iterator[str]:
    told = _REASONS.get(report.reason)
    if told is None:
        code = f" with exit code {report.exit_code}" if report.exit_code is not None else ""
        told = f"The run failed{code}: {report.reason.replace('_', ' ')}"
    yield f"{told}, after {format_duration(report.duration_s)}."
    if report.outcome is Outcome.SUCCEEDED and report.duration_s < _SOON_S and not _has_numbers(report):
        yield "It ended within a minute and reported no numbers: check that the command does what is meant."
    repairs = [attempt.repair for attempt in report.attempts if attempt.repair is not None]
    if repairs:
        names = ", ".join(repair.by for repair in repairs)
        yield (
            f"{len(repairs)} repair(s) were made on the way ({names}): "
            "the result is not of the blueprint as written."
        )
    if report.outcome is Outcome.SUCCEEDED and any(one.fault is Fault.NAN for one in report.findings):
        yield "Losses that are not numbers were logged: look at the log before using the result."
    if report.leftovers:
        yield f"{len(report.leftovers)} process(es) left running by the command were ended."
    if report.progress is not None and report.progress.total:
        yield f"It reached step {report.progress.text}."


def _values(report: Report) -> Iterator[str]:
    if len(report.evaluations) >= 2:
        names = [name for name in report.evaluations[-1].values if _is_score(name)]
        yield from (line for name in names if (line := _change(report.evaluations, name)))
    elif len(report.evaluations) == 1:
        yield "There is a single evaluation, so nothing can be said about a change."
    elif report.training:
        for series in report.training[:3]:
            word = (
                "rose" if series.last > series.first else "fell" if series.last < series.first else "stayed"
            )
            yield (
                f"`{series.name}` {word} from {series.first:.4g} to {series.last:.4g} "
                f"({series.n} values, lowest {series.low:.4g}, highest {series.high:.4g})."
            )
        yield "These are training values, not evaluations: they say nothing about unseen data."
    elif report.outcome is not Outcome.INVALID:
        yield "The log holds no numbers that could be read."


def _change(rows: Sequence[MetricRow], name: str) -> str | None:
    """First against last, in standard errors where these are known."""
    with_name = [row for row in rows if name in row.values]
    if len(with_name) < 2:
        return None
    first, last = with_name[0], with_name[-1]
    difference = last.values[name] - first.values[name]
    best = max(with_name, key=lambda row: row.values[name])
    errors = (standard_error(first, name), standard_error(last, name))
    course = f"from {first.values[name]:.4g}{_at(first)} to {last.values[name]:.4g}{_at(last)}"
    text = f"`{name}` went {course}: {difference:+.4g}"
    if None in errors or not any(errors):
        judged = "; no standard error is known, so this may be noise"
    else:
        size = abs(difference) / math.hypot(*(error or 0.0 for error in errors))
        clear = "a clear change" if size >= _CLEAR else "not more than noise"
        judged = f", {size:.1f} standard errors: {clear}"
    highest = f"Highest {best.values[name]:.4g}{_at(best)} of {len(with_name)}"
    return f"{text}{judged}. {highest} (the highest of several flatters)."


def _at(row: MetricRow) -> str:
    return "" if row.step is None else f" (step {row.step:g})"


def _is_score(name: str) -> bool:
    return name == "mean_reward" or name.startswith("task_pass_rate@")


def _has_numbers(report: Report) -> bool:
    return bool(report.evaluations or report.training)
