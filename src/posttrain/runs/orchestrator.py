"""One run on one page: the ten steps, in order.

Whatever happens is a row of the ledger first, and the record is computed from the ledger. So an
interrupted run takes the same road again and finds each finished step done.
"""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from posttrain import __version__
from posttrain.core.errors import InfrastructureError, PosttrainError, Stopped, UsageError, boundary
from posttrain.core.runs import RunRecord, RunRequest
from posttrain.grading.ledger import Ledger
from posttrain.grading.redaction import Redactor
from posttrain.infra.files import write_json
from posttrain.infra.models import check_unchanged
from posttrain.infra.processes import Spawner
from posttrain.reports.figures import TrajectoryDrawer
from posttrain.runs import steps
from posttrain.runs.auditing import audit_session
from posttrain.runs.clock import Clock
from posttrain.runs.closing import Ending, close, finish, plan_digest
from posttrain.runs.control import measure_control
from posttrain.runs.folder import Footprint, locked, new_run
from posttrain.runs.harness import Harness
from posttrain.runs.history import History
from posttrain.runs.isolation import doorway
from posttrain.runs.judging import judge
from posttrain.runs.lab import Lab, Terminal
from posttrain.runs.log import RunLog
from posttrain.runs.plan import Chosen, choose, prepare
from posttrain.runs.resuming import closed_record, planned, read_request, tidy
from posttrain.runs.session import Session
from posttrain.runs.signals import StopSignals


def run(request: RunRequest, *, lab: Lab, terminal: Terminal) -> RunRecord:
    """One run, from what was asked to what happened.

    Raises UsageError, with nothing left behind, for what the operator has to change first. A failure
    before the plan is in run.log and raised, a later one is in the record.
    """
    footprint, paths = Footprint(lab.paths.home), None
    try:
        with StopSignals() as signals, Spawner() as spawner:
            chosen = choose(request, lab, spawner)
            with doorway(request, chosen.network) as door:
                paths = new_run(lab.paths, request, now=datetime.now())  # noqa: DTZ005 - for people to read
                with locked(paths):
                    return work(chosen, Harness(lab, paths, spawner, signals, terminal, door))
    except UsageError:
        footprint.erase(paths)
        raise


def resume(run_id: str, *, lab: Lab, terminal: Terminal, allow_version_change: bool = False) -> RunRecord:
    """Go on with an interrupted run, or one that the lab failed; a closed one is returned as it is.

    Raises UsageError if there is no such run, if another harness works on it, or if its plan cannot be
    carried out as it was made.
    """
    paths = lab.paths.find_run(run_id)
    if paths is None:
        raise UsageError(f"--resume: no run {run_id!r} in {lab.paths.home}")
    closed = closed_record(paths)
    if closed is not None:
        return closed
    with locked(paths):
        closed = closed_record(paths) or finish(paths, lab.paths, say=terminal.say)
        if closed is not None:
            return closed
        tidy(paths)
        with StopSignals() as signals, Spawner() as spawner:
            request = read_request(paths)
            chosen = choose(request, lab, spawner)
            with doorway(request, chosen.network) as door:
                harness = Harness(lab, paths, spawner, signals, terminal, door)
                return work(chosen, harness, allow_version_change=allow_version_change)


def work(chosen: Chosen, harness: Harness, *, allow_version_change: bool = False) -> RunRecord:
    """Steps 2 to 10, in a run's folder that is ours alone meanwhile."""
    paths = harness.paths
    with RunLog(paths.run_log) as log, told(log), boundary(InfrastructureError, "the run"):
        prepared = prepare(chosen, harness)
        announce(harness)
        plan = planned(paths, fresh=prepared.plan, allow_version_change=allow_version_change)
        if not paths.plan.exists():
            write_json(paths.plan, plan)
        with Ledger(paths.ledger, torn=paths.torn) as ledger:
            history = History(ledger.rows())
            history.check()
            clock = Clock.resumed(
                paths.clock, timeout_s=plan.request.timeout_s, otherwise_s=history.least_used_s
            )
            url_secret = secrets.token_urlsafe(32)
            session = Session(harness, replace(prepared, plan=plan), log, ledger, clock, url_secret)
            log.set_redaction(Redactor(session.secrets))
            open_story(session)
            _keep_memory_steady()
            return conduct(session)


def _keep_memory_steady() -> None:
    """Take all that was imported out of the collector's sight: full collections are cheap and frequent then.

    Otherwise the pipes of ended children wait for a collection that comes ever more rarely.
    """
    gc.collect()
    gc.freeze()


def announce(harness: Harness) -> None:
    """Where to look while the run goes on."""
    paths, door, say = harness.paths, harness.door, harness.terminal.say
    say(f"run {paths.run_id}")
    for path in (paths.run_log, paths.agent_log, paths.server_log):
        say(f"  {path}")
    say(f"  http://127.0.0.1:{door.port}/ (grading server; the agent alone knows the whole URL)")
    if door.note is not None:
        say(f"  {door.note}")


@contextmanager
def told(log: RunLog) -> Iterator[None]:
    """Put what ends the block into run.log."""
    try:
        yield
    except PosttrainError as error:
        log.event(str(error), level="ERROR")
        raise


def open_story(session: Session) -> None:
    """The first row of a run, or the row that says it was taken up again."""
    plan, opened = plan_digest(session.plan), session.history.opened
    if opened is None:
        session.ledger.append("opened", {"plan": plan})
    elif opened.data["plan"] != plan:
        raise UsageError(f"--resume {session.plan.run_id}: plan.json is not the plan that the run began with")
    else:
        used = round(session.clock.used(), 3)
        session.ledger.append("resumed", {"plan": plan, "version": __version__, "used_s": used})
        session.tell(f"resumed with {used:.0f} s of the budget used", public=True)


def conduct(session: Session) -> RunRecord:
    """Steps 4 to 10, from wherever the ledger says the run stands."""
    env = {name: session.lab.host_env.get(name, os.defpath) for name in ("PATH", "HOME")}
    log = session.paths.figure_log
    with TrajectoryDrawer(session.spawner, env=env, log=log) as drawer:
        try:
            with boundary(InfrastructureError, "the run"):
                perform(session)
            ending = Ending()
        except Stopped as error:
            ending = Ending(interrupted=str(error))
        except PosttrainError as error:
            ending = Ending(error=str(error))
            session.log.event(str(error), level="ERROR")
        finally:
            session.clock.pause()
        return close(session, ending, drawer=drawer)


def perform(session: Session) -> None:
    """Steps 4 to 9."""
    check_unchanged(session.prepared.model)
    steps.build_workspace(session)
    steps.check_task(session)
    baselines = steps.measure_baselines(session)
    measure_control(session, baselines)
    with steps.grading(session, baselines) as desk:
        if session.history.agent_end is None:
            steps.run_agent(session, desk)
        with session.signals.interruptible():
            desk.grader.drain()
        desk.rest()  # the final test has a worker of its own
        desk.exports.settle(desk.grader.grades)
        check_unchanged(session.prepared.model)
        audit_session(session)
        if session.history.result is None:
            judge(session, desk.grader, baselines)
