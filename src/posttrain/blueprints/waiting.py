"""`posttrain wait`: sleep that ends when the command in a session ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from posttrain.blueprints.machine import Machine, Unreachable, Wake
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.state import State, load_state
from posttrain.core.errors import UsageError
from posttrain.infra.supervisor import stat_fields
from posttrain.infra.tmux import SHELLS, Pane, Session, Tmux, TmuxError, mangled

_POLL_S = 1.0


class Waited(IntEnum):
    """Exit codes of `posttrain wait`."""

    RUNNING = 0
    ENDED = 1
    UNKNOWN = 2


def wait_for(
    name: str,
    seconds: float,
    *,
    home: Path,
    tmux: Tmux | None,
    machine_of: Callable[[str | None], Machine],
    wake: Wake,
) -> Waited:
    """Wait up to `seconds`; at once when the session's command has ended, or when nothing can be known."""
    deadline = time.monotonic() + seconds
    try:
        session = tmux.find(name) if tmux else None
    except TmuxError:
        session, tmux = None, None
    ours = _experiment(home, name, session)
    if ours is not None:
        return _wait_for_ours(*ours, deadline=deadline, machine_of=machine_of, wake=wake)
    if tmux is None:
        return Waited.UNKNOWN
    return Waited.ENDED if session is None else _wait_for_pane(tmux, session, deadline=deadline, wake=wake)


def _wait_for_ours(
    state: State,
    paths: StatePaths,
    *,
    deadline: float,
    machine_of: Callable[[str | None], Machine],
    wake: Wake,
) -> Waited:
    """By the wrapper's status: what the screen shows does not matter."""
    if state.finish is not None or not state.attempts:
        return Waited.ENDED
    machine = machine_of(state.machine)
    try:
        attempt = StatePaths(machine.state_root(paths.root)).attempt(state.attempt.number)
    except Unreachable:
        return Waited.UNKNOWN
    while True:
        remaining = max(0.0, deadline - time.monotonic())
        probe = machine.wait(attempt, seconds=remaining, wake=wake)
        if probe.state == "ended":
            return Waited.ENDED
        if probe.state == "unknown" or wake.is_set:
            return Waited.UNKNOWN
        if time.monotonic() >= deadline:
            return Waited.RUNNING
        if probe.state == "absent":
            wake.sleep(min(_POLL_S, remaining))


def _wait_for_pane(tmux: Tmux, session: Session, *, deadline: float, wake: Wake) -> Waited:
    """By the processes of the panes, for sessions that are not ours."""
    while True:
        try:
            panes = tmux.panes(session)
        except TmuxError:
            return Waited.UNKNOWN
        if not any(_busy(pane) for pane in panes):
            return Waited.ENDED
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return Waited.RUNNING
        wake.sleep(min(_POLL_S, remaining))
        if wake.is_set:
            return Waited.UNKNOWN


def _busy(pane: Pane) -> bool:
    """Whether anything but an idle, interactive shell runs in the pane."""
    if pane.dead:
        return False
    if pane.command.lstrip("-").lower() not in SHELLS:
        return True
    fields = stat_fields(pane.pid)
    if not fields:
        return False
    group, foreground = fields[2], fields[5]
    return group != foreground or _runs_a_script(pane.pid)


def _runs_a_script(pid: int) -> bool:
    """A shell that was given something to do is the command itself."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:]
    except OSError:
        return False
    return any(word == b"-c" or (word and not word.startswith(b"-")) for word in words)


def _experiment(home: Path, name: str, session: Session | None) -> tuple[State, StatePaths] | None:
    """The experiment that runs in this session, also after the session was renamed."""
    for folder in sorted(home.iterdir()) if home.is_dir() else ():
        paths = StatePaths(folder)
        try:
            state = load_state(paths)
        except UsageError:
            continue
        if state is not None and _matches(state, name, session):
            return state, paths
    return None


def _matches(state: State, name: str, session: Session | None) -> bool:
    known = state.session
    if known is None:
        return state.name == name
    if session is not None:
        return (known.id, known.created) == (session.id, session.created)
    return known.name in {name, mangled(name)} or state.name == name
