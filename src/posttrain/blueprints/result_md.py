"""result.md: a report that a person reads in the morning."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from posttrain.blueprints.compare import last_values
from posttrain.blueprints.conclusion import conclusion
from posttrain.blueprints.metrics import MetricRow
from posttrain.blueprints.report import Report
from posttrain.infra.durations import format_duration

_COLUMNS = ("pass_n", "total_tasks", "num_all_success_tasks", "num_pass_n_tasks")
_MOST_ROWS = 40
_MOST_COLUMNS = 6


def result_md(report: Report, *, figure: str) -> str:
    """`figure` is the line that shows the curve, or says why there is none."""
    sections = (
        _head(report),
        ("## Purpose", "", report.purpose or "(not given)"),
        _ran(report),
        _problems(report),
        _timeline(report),
        _metrics(report),
        ("## Curve", "", figure),
        _errors(report),
        _comparison(report),
        ("## Conclusion", "", *(f"- {line}" for line in conclusion(report))),
        _last_lines(report),
    )
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _head(report: Report) -> tuple[str, ...]:
    limit = f" of {format_duration(report.limit_s)}" if report.limit_s else ""
    used = f"{format_duration(report.duration_s)}{limit}"
    code = "none" if report.exit_code is None else str(report.exit_code)
    return (
        f"# {report.name}: {report.outcome.value}",
        "",
        f"**{report.reason.replace('_', ' ')}** · exit code {code} · {used}"
        f" · {report.started_at} to {report.finished_at}",
    )


def _ran(report: Report) -> Sequence[str]:
    if report.command is None:
        return ()
    rows = [
        ("blueprint", f"`{report.blueprint}`"),
        ("machine", f"`{report.machine}`" if report.machine else "this one"),
        ("code", f"`{report.codebase}`"),
        ("interpreter", f"`{report.python}`"),
        ("configuration", f"`{report.yaml}`"),
        ("attempts", str(len(report.attempts))),
        ("end of processes", report.kill_mode or "not started"),
    ]
    versions = ", ".join(f"{name} {value}" for name, value in report.versions.items())
    return (
        "## What ran", "", "```bash", report.command, "```", "",
        *_table(("", ""), rows), "", f"Versions: {versions or 'unknown'}",
    )  # fmt: skip


def _problems(report: Report) -> Sequence[str]:
    if not report.problems:
        return ()
    return ("## Check of the blueprint", "", *(f"- {problem}" for problem in report.problems))


def _metrics(report: Report) -> Sequence[str]:
    lines: list[str] = ["## Metrics", ""]
    if report.evaluations:
        shown = report.evaluations[-_MOST_ROWS:]
        if len(shown) < len(report.evaluations):
            lines += [
                f"The last {len(shown)} of {len(report.evaluations)} evaluations (all in result.json):",
                "",
            ]
        names = _evaluation_names(shown)
        lines += _table(("step", *names), [_row(row, names) for row in shown])
    if report.training:
        lines += [""] if report.evaluations else []
        rows = [
            (
                f"`{one.name}`",
                str(one.n),
                *(f"{value:.5g}" for value in (one.first, one.last, one.low, one.high)),
            )
            for one in report.training
        ]
        lines += _table(("training value", "n", "first", "last", "lowest", "highest"), rows)
    if not (report.evaluations or report.training):
        lines.append("None were found in the log or in a validation file.")
    return lines


def _evaluation_names(rows: Sequence[MetricRow]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    rates = sorted(name for name in names if name.startswith("task_pass_rate@"))
    known = [name for name in (*_COLUMNS, *rates, "mean_reward", "std_reward") if name in names]
    return known or names[:_MOST_COLUMNS]


def _row(row: MetricRow, names: Sequence[str]) -> tuple[str, ...]:
    step = "" if row.step is None else f"{row.step:g}"
    return (step, *(f"{row.values[name]:.4g}" if name in row.values else "" for name in names))


def _errors(report: Report) -> Sequence[str]:
    lines: list[str] = ["## Errors and repairs", ""]
    for attempt in report.attempts:
        if attempt.finding is not None:
            lines.append(f"- Attempt {attempt.number}: **{attempt.finding.fault.value.replace('_', ' ')}**")
            lines += [f"  - line {line.line}: `{_code(line.text)}`" for line in attempt.finding.evidence[-4:]]
        if attempt.repair is not None:
            changes = "; ".join(attempt.repair.changes)
            lines.append(f"  - repair `{attempt.repair.by}` ({attempt.repair.why}): {changes}")
    explained = {attempt.finding.fault for attempt in report.attempts if attempt.finding is not None}
    survived = [finding for finding in report.findings if finding.fault not in explained]
    lines += [
        f"- Seen in the log and survived: {finding.fault.value.replace('_', ' ')} ({finding.count} times, "
        f"last in line {finding.line}: `{_code(finding.evidence[-1].text) if finding.evidence else ''}`)"
        for finding in survived
    ]
    lines += [f"- Left running by the command and ended: `{_code(name)}`" for name in report.leftovers]
    if report.lost_log_bytes:
        lines.append(f"- {report.lost_log_bytes} bytes of the log could not be written (disk full)")
    if len(lines) == 2:
        lines.append("None.")
    return [*lines, "", "All attempts: trial_and_error.md. Logs: logs/."]


def _comparison(report: Report) -> Sequence[str]:
    lines = ["## Comparison with other blueprints of this folder", ""]
    if not report.compared:
        return [*lines, "No other blueprint of this folder has finished."]
    own = last_values(report.evaluations, tuple(one.model_dump() for one in report.training))
    names = [name for name in own if any(name in other.values for other in report.compared)]
    names = sorted(names, key=lambda name: name not in {"mean_reward", "task_pass_rate@1"})[:_MOST_COLUMNS]
    rows = [
        (
            "**this one**",
            report.outcome.value,
            format_duration(report.duration_s),
            *(f"{own[name]:.4g}" for name in names),
        )
    ]
    for other in report.compared:
        cells = (
            f"{other.values[name]:.4g} ({own[name] - other.values[name]:+.4g} here)"
            if name in other.values
            else ""
            for name in names
        )
        rows.append((other.blueprint, other.outcome.value, format_duration(other.duration_s), *cells))
    return [*lines, *_table(("blueprint", "outcome", "duration", *names), rows)]


def _timeline(report: Report) -> Sequence[str]:
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at)),
            event.text.replace("|", "\\|").replace("\n", " "),
        )
        for event in report.events
    ]
    return ("## Timeline", "", *_table(("time", "event"), rows))


def _last_lines(report: Report) -> Sequence[str]:
    if not report.last_lines:
        return ()
    return (
        "## Last lines of the log",
        "",
        "```text",
        *(line.replace("```", "'''") for line in report.last_lines),
        "```",
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _code(text: str) -> str:
    """One line that fits between backticks."""
    return text.replace("`", "'").strip()[:200]


def _cell(text: str) -> str:
    """One line that fits into a table."""
    return text.replace("|", "\\|").replace("\n", " ")
