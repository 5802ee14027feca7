"""One run on one page: the ten steps, in order.

Whatever happens is a row of the ledger first, and the record is computed from the ledger. So an
interrupted run takes the same road again and finds each finished step done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime

from posttrain.core.errors import PosttrainError, Stopped, UsageError
from posttrain.core.paths import RunPaths
from posttrain.core.runs import RunRecord, RunRequest
from posttrain.grading.ledger import Ledger
from posttrain.infra.files import write_json
from posttrain.infra.models import check_unchanged
from posttrain.infra.processes import Spawner
from posttrain.reports.figures import TrajectoryDrawer
from posttrain.runs import steps
from posttrain.runs.clock import Clock
from posttrain.runs.closing import Ending, close, plan_digest
from posttrain.runs.folder import Footprint, locked, new_run
from posttrain.runs.judging import judge
from posttrain.runs.lab import Lab, Terminal
from posttrain.runs.log import RunLog
from posttrain.runs.plan import Chosen, choose, prepare
from posttrain.runs.session import Session
from posttrain.runs.signals import StopSignals


def run(request: RunRequest, *, lab: Lab, terminal: Terminal) -> RunRecord:
    """One run, from what was asked to what happened.

    Raises UsageError, with nothing left behind, for what the operator has to change first. A failure
    before the plan is in run.log and raised, a later one is in the record.
    """
    footprint, paths = Footprint(lab.paths.home), None
    try:
        with StopSignals() as signals:
            chosen = choose(request, lab)
            with closing(chosen.listener):
                paths = new_run(lab.paths, request, now=datetime.now())  # noqa: DTZ005 - for people to read
                with locked(paths), RunLog(paths.run_log) as log, Spawner() as spawner, told(log):
                    announce(chosen, paths, terminal)
                    prepared = prepare(
                        chosen, lab, paths=paths, spawner=spawner, signals=signals, say=terminal.say
                    )
                    write_json(paths.plan, prepared.plan)
                    clock = Clock(paths.clock, timeout_s=request.timeout_s)
                    with Ledger(paths.ledger, torn=paths.torn) as ledger:
                        ledger.append("opened", {"plan": plan_digest(prepared.plan)})
                        return conduct(
                            Session(lab, paths, prepared, log, ledger, clock, spawner, signals, terminal)
                        )
    except UsageError:
        footprint.erase(paths)
        raise


def announce(chosen: Chosen, paths: RunPaths, terminal: Terminal) -> None:
    """Where to look while the run goes on."""
    terminal.say(f"run {paths.run_id}")
    for path in (paths.run_log, paths.agent_log, paths.server_log):
        terminal.say(f"  {path}")
    terminal.say(f"  http://127.0.0.1:{chosen.port}/ (grading server; the agent alone knows the whole URL)")
    if chosen.port_note is not None:
        terminal.say(f"  {chosen.port_note}")


@contextmanager
def told(log: RunLog) -> Iterator[None]:
    """Put what ends the block into run.log."""
    try:
        yield
    except PosttrainError as error:
        log.event(str(error), level="ERROR")
        raise


def conduct(session: Session) -> RunRecord:
    """Steps 4 to 10, from wherever the ledger says the run stands."""
    env = {name: session.lab.host_env.get(name, os.defpath) for name in ("PATH", "HOME")}
    log = session.paths.root / "figure.log"
    with TrajectoryDrawer(session.spawner, env=env, log=log) as drawer:
        try:
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
    with steps.grading(session, baselines) as desk:
        if session.history.agent_end is None:
            steps.run_agent(session, desk)
        with session.signals.interruptible():
            desk.grader.drain()
        check_unchanged(session.prepared.model)
        if session.history.result is None:
            judge(session, desk.grader, baselines)
