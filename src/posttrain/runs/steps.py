"""Steps 4 to 8 of a run, each a function that leaves its row in the ledger."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pydantic import ValidationError

from posttrain import __version__
from posttrain.agents.environment import Contract, agent_environment
from posttrain.agents.programs import find_programs
from posttrain.agents.texts import (
    RULES_SENTENCE,
    RunFacts,
    render_instructions,
    rules_text,
    skill_names,
    skills_folder,
)
from posttrain.checkpoints.snapshot import SnapshotLimits
from posttrain.core.errors import InfrastructureError, boundary
from posttrain.core.grading import Assessment, Split
from posttrain.core.paths import GradingFolder
from posttrain.evaluators import client as scorer
from posttrain.evaluators.selfcheck import SelfCheck, self_check
from posttrain.grading.answers import RulesNote
from posttrain.grading.app import Service, build_app
from posttrain.grading.exports import Exports
from posttrain.grading.grader import Grader
from posttrain.grading.redaction import Redactor
from posttrain.grading.server import GradingServer, base_url, server_log
from posttrain.grading.verdicts import Terms
from posttrain.infra.digests import digest_value
from posttrain.infra.files import write_json
from posttrain.runs import workspace
from posttrain.runs.agent import Start, end_of, supervise
from posttrain.runs.assessing import assess, assessor
from posttrain.runs.baseline import baseline_key, cached_baseline
from posttrain.runs.history import SELF_CHECK, AgentEnd, Measured
from posttrain.runs.isolation import (
    AGENT_HOME,
    AGENT_TMP,
    agent_limits,
    agent_uid,
    agent_view,
    peer_uids,
    worker_views,
)
from posttrain.runs.session import Session
from posttrain.runs.tools import tool_check
from posttrain.runs.watching import Watched

Baselines = Mapping[Split, Assessment]


# --- step 4: the workspace, and whether the task measures anything


@boundary(InfrastructureError, "building the workspace")
def build_workspace(session: Session) -> None:
    """Make the agent's folder; once the agent has run there, it is left as it is."""
    linked = session.plan.isolation == "none"
    if session.history.started:
        workspace.restore(_contents(session), session.paths, linked=linked)
    else:
        workspace.build(_contents(session), session.paths, linked=linked)
    session.log.open_public(session.paths.public_log)


def _contents(session: Session) -> workspace.Contents:
    prepared, plan, request = session.prepared, session.plan, session.plan.request
    served = prepared.items(session.served)
    facts = RunFacts(
        task=plan.task.id,
        base_model=request.model,
        rows=plan.task.visible,
        timeout_s=request.timeout_s,
        protocol=request.protocol,
        validation_items=len(served),
        max_submissions=request.max_submissions,
        grading_memory=request.grading_memory,
        grading_timeout_s=request.grading_timeout_s,
        network=plan.network,
        isolation=plan.isolation,
        gpus=plan.gpus,
        exposed=prepared.task.expose,
        skills=skill_names(),
    )
    return workspace.Contents(
        task=prepared.task,
        model_folder=prepared.model.folder,
        model_name=prepared.model.name,
        visible=prepared.data.visible,
        pinned=prepared.pinned,
        samples=prepared.samples,
        instructions=render_instructions(facts),
        rules=rules_text(),
        skills=skills_folder(),
    )


@boundary(InfrastructureError, "checking the task")
def check_task(session: Session) -> None:
    """Gold answers score 100 and empty ones 0, once per task digest and version; PluginError otherwise."""
    checked = _self_check(session)
    if session.history.self_checked is None:
        session.ledger.append("event", {"event": SELF_CHECK, **checked.model_dump(mode="json")})
    session.log.event(f"self-check: {checked.told}")
    for warning in checked.warnings:
        session.tell(f"self-check: {warning}")


def _self_check(session: Session) -> SelfCheck:
    prepared = session.prepared
    items = prepared.items(session.served)
    key = digest_value(
        {"task": prepared.data.digest, "split": session.served, "version": __version__, "checks": 2}
    )
    path = session.lab.paths.selfchecks / f"{key}.json"
    try:
        return SelfCheck.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        pass
    folder = session.paths.grading_of("self-check")
    folder.mkdir(parents=True, exist_ok=True)
    views = worker_views(session.plan.run_id, session.plan.isolation, session.lab)
    with session.signals.interruptible():
        checked = tool_check(
            prepared.chosen.tool,
            prepared.task,
            items,
            folder,
            spawner=session.spawner,
            views=views,
            timeout_s=prepared.request.grading_timeout_s,
        ) or self_check(
            prepared.task,
            items,
            score=lambda job: scorer.score(
                job,
                spawner=session.spawner,
                log=GradingFolder(folder).scorer_log,
                timeout_s=prepared.request.grading_timeout_s,
                view=views.scorer(job),
            ),
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, checked)
    return checked


# --- step 5: the untouched base


@boundary(InfrastructureError, "measuring the baseline")
def measure_baselines(session: Session) -> dict[Split, Assessment]:
    """The base on each split that this run needs; read where it was measured before."""
    return {split: _baseline(session, split) for split in session.measured}


def _baseline(session: Session, split: Split) -> Assessment:
    key = baseline_key(session.plan, split, session.prepared.items(split))

    def measure() -> Assessment:
        title = f"baseline {split}"
        with session.terminal.progress(title) as progress, session.signals.interruptible():
            return assess(session, split, None, label=f"baseline-{split}", progress=progress)

    assessment, cached = cached_baseline(session.lab.paths.baselines, key, measure=measure)
    score = assessment.evaluation.score
    row = Measured(
        split=split,
        key=digest_value(key),
        cached=cached,
        score=score,
        digest=digest_value(assessment.evaluation),
    )
    before = session.history.measured(split)
    if before is None:
        session.ledger.append("baseline", row)
    elif before.digest != row.digest:
        raise InfrastructureError(
            f"the baseline on {split} was {before.score.value:.2f}, now it is {score.value:.2f}: grades of "
            f"this run cannot be compared with it; restore {session.lab.paths.baselines / before.key}.json"
        )
    how = "cached" if cached else f"measured in {assessment.total_s:.1f} s"
    session.tell(
        f"baseline {split}: {score.value:.1f} of {score.n} items ({how})", public=split == session.served
    )
    return assessment


# --- step 6: the grading server


@dataclass(frozen=True)
class Desk:
    """Where submissions are handed in while the agent runs."""

    grader: Grader
    exports: Exports
    url: str
    uid: int | None
    """The agent's own user id, where it has one."""
    rest: Callable[[], None]
    """Give back the memory that grading holds between submissions."""


@contextmanager
def grading(session: Session, baselines: Baselines) -> Iterator[Desk]:
    """Grader and server of this run; nothing is accepted before the clock starts."""
    plan, paths, request = session.plan, session.paths, session.plan.request
    secret, redact = session.url_secret, Redactor(session.secrets)
    served = session.served
    exports = Exports(paths.workspace, timeout_s=request.timeout_s)
    watched = Watched(session.terminal, f"grading {served}")
    marker = assessor(session, served, baseline=baselines[served], progress=watched, warm=True)
    grader = Grader(
        paths=paths,
        ledger=session.ledger,
        assessor=marker,
        terms=Terms(
            split=served,
            baseline=baselines[served].evaluation,
            limits=SnapshotLimits.for_base(session.prepared.model.folder),
            max_submissions=request.max_submissions,
            gpus=plan.gpus,
        ),
        budget=session.clock,
        exports=exports,
        redact=redact,
    )
    service = Service(
        grader=grader,
        rules=RulesNote(text=rules_text(), sentence=RULES_SENTENCE),
        task=plan.task.id,
        workspace=str(paths.workspace.root),
        nonce=secrets.token_hex(16),
    )
    uid = agent_uid(plan.run_id, plan.isolation)
    with ExitStack() as stack:
        stack.enter_context(server_log(paths.server_log, redact))
        stack.enter_context(watched)
        app = build_app(service, secret=secret)
        peers = peer_uids(uid, plan.isolation)
        stack.enter_context(GradingServer(app, [session.door.listener], peer_uids=peers))
        stack.enter_context(grader)
        url = base_url(session.door.port, secret)
        yield Desk(grader=grader, exports=exports, url=url, uid=uid, rest=marker.rest)


# --- steps 7 and 8: the agent


@boundary(InfrastructureError, "running the agent")
def run_agent(session: Session, desk: Desk) -> AgentEnd:
    """Start the clock and the agent; return when its whole process tree is gone."""
    clock, grader = session.clock, desk.grader
    if clock.over:  # it died with the harness, or just before it
        end = end_of(clock.exit_code, clock, at_deadline=clock.expired())
        session.ledger.append("stopped", end)
        return end
    clock.start()
    desk.exports.began(clock.start_time, last_submit=session.history.last_submit)
    session.ledger.append(
        "started",
        {"used_s": round(clock.used(), 3), "timeout_s": clock.timeout_s, "deadline": clock.deadline},
    )
    session.tell(f"the agent starts; {clock.remaining():.0f} s left", public=True)
    grader.open()
    end = supervise(
        _start(session, desk),
        spawner=session.spawner,
        clock=clock,
        signals=session.signals,
        failure=lambda: grader.failure,
        time_over=grader.close,
        ended=lambda end: _note_end(session, desk, end),
    )
    how = "stopped at the deadline" if end.at_deadline else f"ended with exit code {end.exit_code}"
    session.tell(f"the agent {how} after {end.used_s:.0f} s", public=True)
    return end


def _note_end(session: Session, desk: Desk, end: AgentEnd) -> None:
    session.ledger.append("stopped", end)
    desk.exports.ended(time.time())


def _start(session: Session, desk: Desk) -> Start:
    plan, folder, lab = session.plan, session.paths.workspace, session.lab
    contract = Contract(
        task=plan.task.id,
        base_model=plan.request.model,
        workspace=folder.root,
        model_path=folder.models / session.prepared.model.name,
        data_path=folder.data,
        output_dir=folder.output,
        grading_server_url=desk.url,
        timeout_s=session.clock.remaining(),
        deadline=session.clock.deadline,
        run_id=plan.run_id,
        seed=plan.seed,
        python=lab.python,
        resumed=session.history.resumed,
    )
    agent, isolated = session.prepared.agent, plan.isolation == "bwrap"
    programs = find_programs(agent, lab.host_env, lab=lab.paths)
    return Start(
        agent=agent,
        workspace=folder.root,
        env=agent_environment(
            agent,
            contract,
            host=lab.host_env,
            network=plan.network,
            pass_env=plan.request.pass_env,
            programs={program.variable: str(program.path) for program in programs},
            home=AGENT_HOME if isolated else None,
            tmpdir=AGENT_TMP if isolated else None,
        ),
        view=agent_view(
            isolation=plan.isolation,
            network=plan.network,
            uid=desk.uid,
            door=session.door,
            workspace=folder.root,
            mounts=workspace.mounts(_contents(session), session.paths),
            agent=agent,
            programs=programs,
            lab=lab,
        ),
        limits=agent_limits(plan.isolation),
        log=session.paths.agent_log,
    )
