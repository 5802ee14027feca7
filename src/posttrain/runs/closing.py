"""Step 10: what a run came to, computed from its ledger, and everything that is written from it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from posttrain.core.errors import InfrastructureError, boundary
from posttrain.core.grading import Verdict
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunPlan, RunRecord
from posttrain.grading.ledger import Ledger
from posttrain.infra.digests import digest_value
from posttrain.infra.files import write_json
from posttrain.reports.figures import TrajectoryDrawer, trajectory
from posttrain.reports.metrics import run_metrics, verdict_counts
from posttrain.reports.results import driver_model, record_result, result_row
from posttrain.runs import outcome
from posttrain.runs.history import Closed, History
from posttrain.runs.inventory import take_inventory
from posttrain.runs.log import RunLog
from posttrain.runs.reporting import settle_report
from posttrain.runs.resuming import read_plan
from posttrain.runs.secrecy import redact_file
from posttrain.runs.session import Session


class Ending(NamedTuple):
    """How the steps came to an end."""

    error: str | None = None
    """What failed, in a sentence; None for a run that went through or was stopped."""
    interrupted: str | None = None
    """The signal that stopped it."""


def plan_digest(plan: RunPlan) -> str:
    """Digest of everything in a plan that a resume must find unchanged."""
    return digest_value(plan.fingerprint())


def record_of(
    plan: RunPlan, history: History, *, closed: Closed, ended: str, head: str, rows: int
) -> RunRecord:
    """The record that a ledger and a plan come to: a pure function, so that anybody can check it."""
    grades = history.grades
    end = history.agent_end
    faults = outcome.waited(grades, only=Verdict.ERROR)
    result = history.result
    return RunRecord(
        run_id=plan.run_id,
        plan_digest=plan_digest(plan),
        status=closed.status,
        started=history.started_at or plan.created,
        ended=ended,
        duration_s=closed.used_s,
        agent_exit=None if end is None else end.exit_code,
        stopped_at_deadline=end is not None and end.at_deadline,
        grading_wait_s=outcome.waited(grades),
        harness_fault_s=faults,
        verdicts=verdict_counts(grades),
        result=result,
        val_baseline=history.baseline("val"),
        test_baseline=history.baseline("test"),
        format_control=None if history.control is None else history.control.control,
        marks=outcome.marks(
            plan,
            fault_s=faults,
            flags=(*(result.flags if result else ()), *_contamination(history)),
            versions=history.versions,
        ),
        reason=closed.reason,
        report=history.report,
        resumed=history.resumed,
        ledger_head=head,
        ledger_rows=rows,
        self_check=closed.self_check,
    )


def _contamination(history: History) -> tuple[str, ...]:
    """Contamination of validation changes the choice of a submission, that of test the result's worth."""
    return tuple(flag for flag in history.audit_flags if flag == "test_contaminated")


def close(session: Session, ending: Ending, *, drawer: TrajectoryDrawer) -> RunRecord:
    """Write reports, the closing row, the row in results.csv and, last, record.json."""
    closed = _closed(session, ending)
    with boundary(InfrastructureError, "writing the reports"):
        if session.history.agent_end is not None:
            session.clock.settle(closed.used_s)
        _redact_agent_log(session)
        if session.history.times is not None:
            settle_report(session)
        _write_reports(session, _draft(session, closed), drawer=drawer)
        session.log.event(f"closing: {closed.status.value}")
        session.ledger.append("closed", closed.model_copy(update={"files": take_inventory(session.paths)}))
        return publish(
            session.plan, session.ledger, paths=session.paths, lab=session.lab.paths, log=session.log
        )


def _closed(session: Session, ending: Ending) -> Closed:
    history = session.history
    end = history.agent_end
    used = session.clock.used() if end is None else end.used_s
    return Closed(
        status=outcome.status(
            error=ending.error,
            interrupted=ending.interrupted is not None,
            graded=sum(grade.score is not None for grade in history.grades),
            agent_exit=None if end is None else end.exit_code,
            at_deadline=end is not None and end.at_deadline,
        ),
        reason=ending.error or ending.interrupted,
        used_s=round(min(used, session.clock.timeout_s), 3),
        driver=_driver(session),
        self_check=history.self_checked or {},
        files={},
    )


def _driver(session: Session) -> str:
    passed = {name: value for name, value in session.lab.host_env.items() if name in session.plan.env_names}
    return driver_model({**session.prepared.agent.env_vars, **passed})  # as the agent's own environment


def _draft(session: Session, closed: Closed) -> RunRecord:
    """The record as reports are made from it, before the row that closes the run."""
    return record_of(
        session.plan,
        session.history,
        closed=closed,
        ended=datetime.now(UTC).isoformat(timespec="milliseconds"),
        head=session.ledger.head,
        rows=session.ledger.count,
    )


def publish(plan: RunPlan, ledger: Ledger, *, paths: RunPaths, lab: LabPaths, log: RunLog) -> RunRecord:
    """Tell the world what the ledger's last row has closed; doing it again changes nothing."""
    history = History(ledger.rows())
    record = closing_record(plan, history, head=ledger.head)
    head = head_line(record)
    if head not in paths.run_log.read_text("utf-8", "replace"):
        log.event(head, at=datetime.fromisoformat(record.ended))
    row = result_row(
        plan, record, history.grades, driver=_closing(history).driver, workspace=paths.workspace.root
    )
    record_result(lab.results_csv, row)
    write_json(paths.record, record)
    return record


def closing_record(plan: RunPlan, history: History, *, head: str) -> RunRecord:
    """The record of a history whose last row closed the run; `head` is the hash of that row."""
    return record_of(
        plan,
        history,
        closed=_closing(history),
        ended=history.rows[-1].time,
        head=head,
        rows=len(history.rows),
    )


def _closing(history: History) -> Closed:
    return Closed.model_validate(history.rows[-1].data)


def head_line(record: RunRecord) -> str:
    """The last event of a closed run."""
    return f"ledger head {record.ledger_head}, {record.ledger_rows} rows"


def finish(paths: RunPaths, lab: LabPaths, *, say: Callable[[str], None]) -> RunRecord | None:
    """Publish a run that died between its last row and record.json; None if that is not what happened."""
    if not paths.plan.exists() or not paths.ledger.exists():
        return None
    with Ledger(paths.ledger, torn=paths.torn) as ledger:
        history = History(ledger.rows())
        if not history.rows or history.rows[-1].kind != "closed":
            return None
        plan = read_plan(paths)
        if not closing_record(plan, history, head=ledger.head).closed:
            return None
        say(f"run {paths.run_id} was closed; writing what is missing of its record")
        with RunLog(paths.run_log) as log, boundary(InfrastructureError, "writing the record"):
            return publish(plan, ledger, paths=paths, lab=lab, log=log)


def _redact_agent_log(session: Session) -> None:
    """The agent is gone, so its output can be replaced: keys do not stay in a folder that people share."""
    found = redact_file(session.paths.agent_log, session.secrets)
    if found:
        session.tell(f"agent.log: {found} times a secret was taken out")


def _write_reports(session: Session, record: RunRecord, *, drawer: TrajectoryDrawer) -> None:
    paths, history = session.paths, session.history
    paths.reports.mkdir(exist_ok=True)
    times = history.times
    if times is None:
        return
    grades = history.timed_grades
    write_json(paths.metrics, run_metrics(grades, plan=session.plan, record=record, times=times))
    data = trajectory(grades, plan=session.plan, record=record, start_time=times.start)
    figure = drawer.draw(data, paths.figures)
    if figure.note is not None:
        session.tell(figure.note)
