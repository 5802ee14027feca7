"""Looks at experiments from outside, and asks them to end. Works whether or not an executor is at work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from posttrain.blueprints.machine import Machine, Unreachable
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.progress import Progress
from posttrain.blueprints.state import State, experiment_name, is_held, load_state
from posttrain.blueprints.watch import Observation, order_end
from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen


class Standing(Frozen):
    """Where one experiment stands."""

    name: str
    source: Path
    state: str
    """running, unknown, waiting (no executor at work), or the outcome and its reason."""
    watched: bool
    """Whether an executor is at work on it."""
    attempt: int
    used_s: float
    limit_s: float
    progress: Progress | None = None
    last_value: str = ""
    session: str | None = None
    documents: Path | None = None


_CLOSE_WITHIN_S = 90.0
_POLL_S = 0.2

MachineOf = Callable[[str | None], Machine]


def standings(home: Path, *, machine_of: MachineOf) -> Iterator[Standing]:
    """All experiments, by name."""
    for folder in sorted(home.iterdir()) if home.is_dir() else ():
        paths = StatePaths(folder)
        state = load_state(paths)
        if state is not None:
            yield _standing(state, paths, machine_of(state.machine))


def standing(source: Path, *, home: Path, machine_of: MachineOf) -> Standing:
    """The experiment of one blueprint file; UsageError if it was never run."""
    paths = StatePaths(home / experiment_name(source))
    state = _known(paths, source)
    return _standing(state, paths, machine_of(state.machine))


def ask_to_stop(source: Path, *, home: Path, machine_of: MachineOf) -> State:
    """Order the end of an experiment; returns its state, closed where an executor has seen to it.

    Without an executor the state is still open: whoever asked must run one to have the documents written.
    """
    paths = StatePaths(home / experiment_name(source))
    state = _known(paths, source)
    if state.closed:
        return state
    paths.stop.write_text(json.dumps({"at": time.time()}), "utf-8")
    _order(state, paths, machine_of(state.machine))
    give_up = time.monotonic() + _CLOSE_WITHIN_S
    while not state.closed and is_held(paths) and time.monotonic() < give_up:
        time.sleep(_POLL_S)
        state = _known(paths, source)
        _order(state, paths, machine_of(state.machine))  # a repair may just have begun another attempt
    return state


def _order(state: State, paths: StatePaths, machine: Machine) -> None:
    on_machine = StatePaths(machine.state_root(paths.root))
    for attempt in (on_machine.attempt(state.attempt.number) if state.attempts else None, on_machine.service):
        if (
            attempt is not None
            and machine.read(attempt.job) is not None
            and machine.read(attempt.stop) is None
        ):
            order_end(attempt, reason="user", machine=machine)


def _known(paths: StatePaths, source: Path) -> State:
    state = load_state(paths)
    if state is None:
        raise UsageError(
            f"{source}: no experiment of this blueprint is known; posttrain blueprint run starts one"
        )
    return state


def _standing(state: State, paths: StatePaths, machine: Machine) -> Standing:
    watched = is_held(paths)
    try:
        phase = _phase(state, paths, machine, watched=watched)
    except Unreachable:
        phase = "unknown"
    shown = Standing(
        name=state.name,
        source=state.source,
        state=phase,
        watched=watched,
        attempt=len(state.attempts),
        used_s=max(0.0, (state.finish.at if state.finish else time.time()) - state.started_at),
        limit_s=state.blueprint.max_time_s if state.blueprint else 0.0,
        session=state.session.name if state.session else None,
        documents=state.documents,
    )
    if state.closed or not state.attempts or phase == "unknown":
        return shown
    number = state.attempt.number
    observation = Observation(
        StatePaths(machine.state_root(paths.root)).attempt(number),
        machine=machine,
        validation=None,
        validation_offset=0,
    )
    observation.advance()
    return shown.model_copy(
        update={"progress": observation.progress.progress, "last_value": _last_value(observation)}
    )


def _phase(state: State, paths: StatePaths, machine: Machine, *, watched: bool) -> str:
    if state.finish is not None:
        told = f"{state.finish.outcome.value} ({state.finish.reason})"
        return told if state.closed else f"{told}, writing documents"
    if not state.attempts:
        return "starting"
    probe = machine.probe(StatePaths(machine.state_root(paths.root)).attempt(state.attempt.number))
    return {"absent": "starting", "ended": "ended"}.get(probe.state, probe.state) + (
        "" if watched else ", unwatched"
    )


def _last_value(observation: Observation) -> str:
    rows = observation.metrics.evaluations or observation.metrics.training
    if not rows:
        return observation.log.last_line[:60]
    values = rows[-1].values
    name = next((name for name in ("mean_reward", "reward", "loss") if name in values), next(iter(values)))
    return f"{name} {values[name]:.4g}"
