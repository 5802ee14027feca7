"""Starts the wrapper of an attempt: in a tmux session that is created empty, or without one."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from posttrain.blueprints.attempt import AttemptPaths
from posttrain.blueprints.machine import Machine, Wake
from posttrain.blueprints.policy import Policy
from posttrain.core.errors import InfrastructureError
from posttrain.infra.tmux import Session, Tmux

_LOOK_S = 0.1


class LaunchFailed(InfrastructureError):
    """The wrapper did not come up."""


def write_attempt(
    attempt: AttemptPaths,
    *,
    machine: Machine,
    folder: Path,
    command: str,
    prefix: tuple[str, ...],
    env: Mapping[str, str],
    deadline: float,
    policy: Policy,
) -> None:
    """Put down all that the wrapper needs. The command becomes a script, so nothing in it needs quoting."""
    script = f"cd -- {shlex.quote(str(folder))} || exit 1\n{command}\n"
    if prefix:
        inner = attempt.folder / "command.sh"
        machine.write(inner, script.encode())
        script = f"exec {shlex.join([*prefix, 'bash', str(inner)])}\n"
    job = {
        "env": dict(env),
        "deadline": deadline,
        "grace_s": policy.grace_s,
        "linger_s": policy.linger_s,
        "sample_s": policy.sample_s,
        "namespace": True,
    }
    machine.write(attempt.launch, script.encode())
    machine.write(attempt.run, machine.wrapper_script(attempt).encode())
    machine.write(attempt.job, json.dumps(job).encode(), mode=0o600)


class Launcher:
    """Sessions of one experiment. Starting twice is harmless: only one wrapper takes the claim."""

    def __init__(self, machine: Machine, *, tmux: Tmux | None, policy: Policy, wake: Wake) -> None:
        self._machine = machine
        self._tmux = tmux
        self._policy = policy
        self._wake = wake

    def launch(self, attempt: AttemptPaths, *, name: str, session: Session | None) -> Session | None:
        """Start and wait until the wrapper reports. Returns the session used, if sessions are."""
        deadline = time.monotonic() + self._policy.start_within_s
        again_at = time.monotonic() + self._policy.start_within_s / 3
        session = self._send(attempt, name=name, session=session)
        while self._machine.probe(attempt).state == "absent":
            now = time.monotonic()
            if now > deadline or self._wake.is_set:
                raise LaunchFailed(
                    f"the wrapper of {attempt.folder} did not start; see the session or {attempt.run}"
                )
            if now > again_at:  # a shell that starts slowly may have lost what was typed
                again_at = deadline
                session = self._send(attempt, name=name, session=session)
            self._wake.sleep(_LOOK_S)
        return session

    def close(self, session: Session | None, *, screen: Path, keep: bool) -> None:
        """Save what the session shows and end it."""
        if self._tmux is None or session is None or self._tmux.current(session) is None:
            return
        screen.parent.mkdir(parents=True, exist_ok=True)
        screen.write_text(self._tmux.screen(session), "utf-8")
        if not keep:
            self._tmux.kill(session)

    def find(self, name: str) -> Session | None:
        """The session of this name: one that a killed executor had no time to write down."""
        return self._tmux.find(name) if self._tmux else None

    def current(self, session: Session | None) -> Session | None:
        """The session as it is now, under whatever name."""
        return self._tmux.current(session) if self._tmux and session else None

    def _send(self, attempt: AttemptPaths, *, name: str, session: Session | None) -> Session | None:
        viewer = self._machine.viewer(attempt)
        if self._tmux is None or viewer is not None:
            self._machine.launch(attempt)
        if self._tmux is None:
            return None
        session = (session and self._tmux.current(session)) or self._created(self._tmux, name)
        self._tmux.type_line(session, viewer or f" bash {shlex.quote(str(attempt.run))}")
        return session

    @staticmethod
    def _created(tmux: Tmux, name: str) -> Session:
        """A new session; a name in use gets a number."""
        taken = {session.name for session in tmux.sessions()}
        free = next(
            free
            for number in range(1, 1000)
            if (free := f"{name}_{number}" if number > 1 else name) not in taken
        )
        return tmux.create(free, folder=Path("/"))
