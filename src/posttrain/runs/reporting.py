"""The summary of a run: what ledger and logs know of it, its check, and one from facts where none is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from posttrain import __version__
from posttrain.core.errors import InfrastructureError, LedgerError, PosttrainError, UsageError, boundary
from posttrain.core.paths import RunPaths
from posttrain.core.runs import RunRecord, RunReport
from posttrain.grading.book import Accepted
from posttrain.grading.ledger import read_rows
from posttrain.grading.redaction import Redactor
from posttrain.grading.verdicts import COPY_OF_BASE
from posttrain.grading.witness import read_report, without_secrets
from posttrain.infra.digests import digest_value
from posttrain.infra.files import write_atomic, write_json
from posttrain.reports.metrics import RunMetrics, run_metrics
from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.facts import Facts, Handed, Moment, process_metrics
from posttrain.reports.summaries.findings import SummaryCheck
from posttrain.reports.summaries.script import Script
from posttrain.reports.summaries.unwritten import from_facts
from posttrain.reports.summaries.words import LABELS
from posttrain.reports.summaries.workspace import current_scripts, other_logs, read_log
from posttrain.reports.summary import MARKDOWN, ROWS, json_line, row, section
from posttrain.runs.history import REPORT, History, KeptReport
from posttrain.runs.resuming import read_plan
from posttrain.runs.session import Session

BY_HARNESS = "by: harness"
"""The line below the title of a summary that no agent wrote."""


def settle_report(session: Session) -> None:
    """Keep the agent's summary, or make one from facts, and put what its check found into the ledger."""
    paths, history = session.paths, session.history
    paths.reports.mkdir(exist_ok=True)
    try:
        with boundary(InfrastructureError, "checking the summary"):
            facts = facts_of(paths, history)
            by = _keep(paths, facts, history, redact=Redactor(session.secrets))
            result = kept_check(paths, facts_for(facts, by=by))
            write_json(paths.summary_check, result)
    except InfrastructureError as error:
        session.ledger.append("event", {"event": REPORT, "error": str(error)})
        session.tell(f"report: {error}")
        return
    report = report_of(result, by=by)
    session.ledger.append(
        "event",
        {
            "event": REPORT,
            **KeptReport(report=report, digest=digest_value(result), version=__version__).model_dump(
                mode="json"
            ),
        },
    )
    session.tell(f"report: {told(report)}")


def report_of(result: SummaryCheck, *, by: str) -> RunReport:
    """What of a check goes into the record."""
    return RunReport(
        by="harness" if by == "harness" else "agent",
        iterations=result.iterations,
        findings=len(result.findings),
        rules=result.broken,
        not_checkable=len(result.notes),
    )


def told(report: RunReport) -> str:
    """The check in a sentence."""
    whose = "written by the harness" if report.by == "harness" else "by the agent"
    broken = ", ".join(
        f"{'rule ' if rule.isdigit() else ''}{rule} ({count})" for rule, count in report.rules.items()
    )
    many = "iteration" if report.iterations == 1 else "iterations"
    return f"{report.iterations} {many} {whose}; " + (f"findings: {broken}" if broken else "check ok")


def kept_check(paths: RunPaths, facts: Facts) -> SummaryCheck:
    """The check of the summary that lies with the run."""
    return check_summary(read_kept(paths.summary(MARKDOWN)), read_kept(paths.summary(ROWS)), facts)


def facts_for(facts: Facts, *, by: str) -> Facts:
    """What a summary is held against: the harness writes its own after the last grading, as no agent can."""
    if by != "harness" or facts.now is None:
        return facts
    return replace(facts, now=max((facts.now, *(entry.at + entry.waited for entry in facts.handed))))


def read_kept(path: Path) -> bytes | None:
    """A file that lies with the run, or None; PosttrainError for what is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PosttrainError(f"{path} cannot be read: {error.strerror}") from error


def _keep(paths: RunPaths, facts: Facts, history: History, *, redact: Callable[[str], str]) -> str:
    """Copy what the agent wrote, as far as it can be read safely; returns who wrote what is kept.

    `redact` takes out keys that it was given, as when its submissions were witnessed.
    """
    written = {name: read_report(paths.workspace, name) for name in (MARKDOWN, ROWS)}
    seen_before = any(moment.reports for moment in facts.moments)
    if (written[MARKDOWN] or b"").strip() or (written[ROWS] or b"").strip() or seen_before:
        for name, raw in written.items():
            if raw is None:
                paths.summary(name).unlink(missing_ok=True)
            else:
                write_atomic(paths.summary(name), without_secrets(raw, redact))
        return "agent"
    end = history.agent_end
    iterations = from_facts(facts, exit_code=None if end is None else end.exit_code)
    text = redact("".join(f"\n{section(iteration)}" for iteration in iterations))
    write_atomic(paths.summary(MARKDOWN), f"{LABELS['zh'].title}\n\n{BY_HARNESS}\n{text}")
    write_atomic(paths.summary(ROWS), "".join(json_line(row(iteration)) for iteration in iterations))
    return "harness"


# --- facts


def read_history(paths: RunPaths, record: RunRecord | None = None) -> History:
    """The ledger of a run; an empty story where there is none.

    LedgerError for one that holds anything else than rows, or fewer than `record` names.
    """
    try:
        history = History(read_rows(paths.ledger) if os.path.lexists(paths.ledger) else ())
        history.check()
    except (OSError, LedgerError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LedgerError(f"{paths.ledger}: {reason}") from error
    if record is not None and len(history.rows) < record.ledger_rows:
        raise LedgerError(
            f"{paths.ledger}: it holds {len(history.rows)} rows, record.json names {record.ledger_rows}"
        )
    if history.rows and not paths.plan.exists():
        raise LedgerError(f"{paths.plan} is missing, and the ledger was begun after it")
    return history


def _read_record(paths: RunPaths) -> RunRecord | None:
    try:
        return RunRecord.model_validate_json(paths.record.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise PosttrainError(f"{paths.record} cannot be read: {str(error).splitlines()[0]}") from error


def read_facts(paths: RunPaths) -> Facts:
    """The facts of a run as its files have them now. UsageError for one that never had a plan."""
    history = read_history(paths, _read_record(paths))
    if not paths.plan.exists():
        raise UsageError(f"RUN: {paths.run_id} ended before it had a plan; there is nothing to check")
    facts, kept = facts_of(paths, history), history.kept_report
    return facts if kept is None else facts_for(facts, by=kept.report.by)


def facts_of(paths: RunPaths, history: History) -> Facts:
    """What the ledger says, the logs that the agent could read, its own, and its code then and now."""
    times = history.times
    in_one_piece = sum(fact.kind == "started" for fact in history.rows) == 1
    accepted = [Accepted.model_validate(fact.data) for fact in history.rows if fact.kind == "accepted"]
    logs = [log for path in (paths.agent_log, paths.public_log) if (log := read_log(path)) is not None]
    plan = read_plan(paths)
    return Facts(
        handed=tuple(_handed(accepted, history)),
        start=times.start if times is not None and in_one_piece else None,
        timeout_s=plan.request.timeout_s if in_one_piece else None,
        end=times.end if times is not None else None,
        now=_last_seen(history),
        scripts=tuple(
            Script(script.name, script.text) for script in current_scripts(paths.workspace)
        ),  # without times of change: copying a lab home may lose them
        moments=tuple(_moments(paths, accepted)),
        logs=(*logs, *other_logs(paths.workspace)),
        logs_known=bool(logs),
    )


def _last_seen(history: History) -> float | None:
    """The last moment at which the agent can have written anything."""
    known = ("started", "accepted", "copied", "graded", "stopped")
    stopped = [fact for fact in history.rows if fact.kind == "stopped"]
    seen = stopped or [fact for fact in history.rows if fact.kind in known]
    return datetime.fromisoformat(seen[-1].time).timestamp() if seen else None


def _handed(accepted: Sequence[Accepted], history: History) -> list[Handed]:
    notes = {entry.submission_id: entry.request.note for entry in accepted}
    return [
        Handed(
            number=grade.submission_id,
            at=datetime.fromisoformat(grade.timestamp).timestamp(),
            path=grade.model_path,
            status=grade.status,
            score=grade.value,
            improvement=None if grade.improvement is None else grade.improvement.value,
            baseline=grade.baseline_score,
            copy_of_base=COPY_OF_BASE in grade.flags,
            note=notes.get(grade.submission_id),
            error=grade.error,
            waited=grade.elapsed_seconds,
        )
        for grade in history.grades
    ]


def _moments(paths: RunPaths, accepted: Sequence[Accepted]) -> list[Moment]:
    texts: dict[str, str] = {}
    for digest in {digest for entry in accepted for digest in entry.witness.code.values()}:
        raw = read_kept(paths.script(digest))
        if raw is not None:
            texts[digest] = raw.decode("utf-8", "replace")
    return [
        Moment(
            number=entry.submission_id,
            reports=entry.witness.reports,
            scripts=tuple(
                Script(name, texts[digest]) for name, digest in entry.witness.code.items() if digest in texts
            ),
        )
        for entry in accepted
    ]


def read_metrics(paths: RunPaths) -> RunMetrics | dict[str, object]:
    """metrics.json computed anew from ledger, plan and record; of an open run, what is known so far."""
    record = _read_record(paths)
    history = read_history(paths, record)
    if record is not None and history.times is not None:
        return run_metrics(history.timed_grades, plan=read_plan(paths), record=record, times=history.times)
    facts = read_facts(paths)
    return process_metrics(facts.handed, start=facts.start, end=facts.end, timeout_s=facts.timeout_s)
