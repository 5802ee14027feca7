"""Step 10: what a run came to, computed from its ledger, and everything that is written from it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import NamedTuple

from posttrain.checkpoints.intake import Changed, opened_file, opened_folder
from posttrain.core.errors import InfrastructureError, SubmissionFault, boundary
from posttrain.core.grading import Verdict
from posttrain.core.paths import RunPaths
from posttrain.core.runs import RunPlan, RunRecord
from posttrain.infra.digests import digest_value
from posttrain.infra.files import write_atomic, write_json
from posttrain.reports.figures import TrajectoryDrawer, trajectory
from posttrain.reports.metrics import run_metrics
from posttrain.reports.results import driver_model, record_result, result_row
from posttrain.runs import outcome
from posttrain.runs.history import Closed, History
from posttrain.runs.inventory import take_inventory
from posttrain.runs.session import Session

AGENT_REPORTS = ("summary.md", "summary.jsonl")
LARGEST_REPORT = 16 << 20


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
        verdicts=outcome.verdict_counts(grades),
        result=result,
        val_baseline=history.baseline("val"),
        test_baseline=history.baseline("test"),
        marks=outcome.marks(plan, fault_s=faults, flags=result.flags if result else ()),
        reason=closed.reason,
        resumed=history.resumed,
        ledger_head=head,
        ledger_rows=rows,
        self_check=closed.self_check,
    )


def close(session: Session, ending: Ending, *, drawer: TrajectoryDrawer) -> RunRecord:
    """Write reports, the closing row, the row in results.csv and, last, record.json."""
    history = session.history
    end = history.agent_end
    status = outcome.status(
        error=ending.error,
        interrupted=ending.interrupted is not None,
        graded=sum(grade.score is not None for grade in history.grades),
        agent_exit=None if end is None else end.exit_code,
        at_deadline=end is not None and end.at_deadline,
    )
    closed = Closed(
        status=status,
        reason=ending.error or ending.interrupted,
        used_s=round(min(session.clock.used(), session.clock.timeout_s), 3),
        self_check=_self_check(history),
        files={},
    )
    with boundary(InfrastructureError, "writing the reports"):
        draft = record_of(
            session.plan,
            history,
            closed=closed,
            ended=_now(),
            head=session.ledger.head,
            rows=session.ledger.count,
        )
        _write_reports(session, draft, drawer=drawer)
        session.log.event(f"closing: {status.value}")
        closed = closed.model_copy(update={"files": take_inventory(session.paths)})
        row = session.ledger.append("closed", closed)
        record = record_of(
            session.plan,
            session.history,
            closed=closed,
            ended=row.time,
            head=session.ledger.head,
            rows=session.ledger.count,
        )
        session.log.event(f"ledger head {record.ledger_head}, {record.ledger_rows} rows")
        _record_row(session, record)
        write_json(session.paths.record, record)
    return record


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _self_check(history: History) -> dict[str, object]:
    found = [
        row.data for row in history.rows if row.kind == "event" and row.data.get("event") == "self-check"
    ]
    return {key: value for key, value in found[-1].items() if key != "event"} if found else {}


def _write_reports(session: Session, record: RunRecord, *, drawer: TrajectoryDrawer) -> None:
    paths, history = session.paths, session.history
    paths.reports.mkdir(exist_ok=True)
    _copy_agent_reports(paths)
    times = history.times
    if times is None:
        return
    write_json(paths.metrics, run_metrics(history.grades, plan=session.plan, record=record, times=times))
    data = trajectory(history.grades, plan=session.plan, record=record, start_time=times.start)
    figure = drawer.draw(data, paths.figures)
    if figure.note is not None:
        session.tell(figure.note)


def _copy_agent_reports(paths: RunPaths) -> None:
    """The agent's own summary, as far as it consists of regular files of a sane size."""
    for name in AGENT_REPORTS:
        content = _agent_file(paths, name)
        if content is not None:
            write_atomic(paths.reports / name, content)


def _agent_file(paths: RunPaths, name: str) -> bytes | None:
    try:
        with (
            opened_folder(paths.workspace.root, PurePosixPath(paths.workspace.reports.name)) as folder,
            opened_file(folder, name) as (descriptor, seen),
            open(descriptor, "rb", closefd=False) as file,
        ):
            return file.read(LARGEST_REPORT) if seen.size <= LARGEST_REPORT else None
    except (SubmissionFault, InfrastructureError, Changed, OSError):
        return None  # no summary, or none that can be read safely: the checks of reports say so


def _record_row(session: Session, record: RunRecord) -> None:
    agent = session.prepared.agent
    passed = {name: value for name, value in session.lab.host_env.items() if name in session.plan.env_names}
    row = result_row(
        session.plan,
        record,
        session.history.grades,
        driver=driver_model({**passed, **agent.env_vars}),
        workspace=session.paths.workspace.root,
    )
    record_result(session.lab.paths.results_csv, row)
