"""A service that an experiment needs: used where it answers already, else started, and then stopped again."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.blueprints.attempt import AttemptPaths
from posttrain.blueprints.launch import Launcher, write_attempt
from posttrain.blueprints.machine import Machine, Wake
from posttrain.blueprints.policy import Policy
from posttrain.blueprints.readiness import Readiness
from posttrain.blueprints.watch import order_end
from posttrain.core.errors import InfrastructureError
from posttrain.infra.tmux import Session

_LOOK_S = 0.5
_SETTLED_AFTER_S = 10.0
_OUTLIVES_LIMIT_S = 120.0
"""A dead executor must not leave the service running for ever."""


class ServiceFailed(InfrastructureError):
    """The service ended or did not get ready."""


@dataclass(frozen=True)
class Service:
    """One service of one experiment, with a session of its own."""

    command: str
    ready: Readiness
    folder: Path
    """Its working folder: the code folder."""
    env: Mapping[str, str]
    attempt: AttemptPaths
    machine: Machine
    launcher: Launcher
    policy: Policy
    wake: Wake

    def is_running(self) -> bool:
        """Whether the one that we started is there."""
        return self.machine.probe(self.attempt).state == "running"

    def start(self, *, name: str, session: Session | None, deadline: float) -> Session | None:
        """Start and wait until it is ready. ServiceFailed if it ends or takes too long."""
        self._forget_earlier()
        write_attempt(
            self.attempt,
            machine=self.machine,
            folder=self.folder,
            command=self.command,
            prefix=(),
            env=self.env,
            deadline=deadline + _OUTLIVES_LIMIT_S,
            policy=self.policy,
        )
        session = self.launcher.launch(self.attempt, name=name, session=session)
        self._wait_until_ready()
        return session

    def stop(self) -> None:
        """End it; returns when it has ended or cannot be ended."""
        if not self.is_running():
            return
        order_end(self.attempt, reason="user", machine=self.machine)
        give_up = time.monotonic() + self.policy.grace_s + 10
        while self.is_running() and time.monotonic() < give_up:
            self.machine.wait(self.attempt, seconds=_LOOK_S, wake=self.wake)

    def _wait_until_ready(self) -> None:
        began = time.monotonic()
        while not self._ready(time.monotonic() - began):
            if not self.is_running():
                raise ServiceFailed(f"the service ended before it was ready; its log: {self.attempt.log}")
            if time.monotonic() - began > self.policy.service_within_s:
                raise ServiceFailed(f"the service was not ready in time; its log: {self.attempt.log}")
            if self.wake.is_set:
                raise ServiceFailed("interrupted while waiting for the service")
            self.wake.sleep(_LOOK_S)

    def _ready(self, waited_s: float) -> bool:
        match self.ready.kind:
            case "log":
                log = (self.machine.read(self.attempt.log) or b"").decode("utf-8", "replace")
                return _matches(self.ready.pattern, log)
            case "started":
                return waited_s >= min(_SETTLED_AFTER_S, self.policy.service_within_s / 2)
            case _:
                return self.machine.answers(self.ready)

    def _forget_earlier(self) -> None:
        """An earlier start of the same service has left its files."""
        for path in (self.attempt.status, self.attempt.stop, self.attempt.log):
            self.machine.remove(path)


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return pattern in text
