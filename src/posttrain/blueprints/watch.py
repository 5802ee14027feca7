"""Watches one attempt: looks at growing intervals, notices its end at once, orders an early end rarely."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from posttrain.blueprints.attempt import AttemptPaths
from posttrain.blueprints.detect import Detector
from posttrain.blueprints.logs import LogReader
from posttrain.blueprints.machine import Machine, Wake
from posttrain.blueprints.metrics import MetricsReader
from posttrain.blueprints.plateau import on_plateau
from posttrain.blueprints.policy import Policy
from posttrain.blueprints.progress import ProgressReader
from posttrain.blueprints.status import Ending, Status, ending_of
from posttrain.core.errors import PosttrainError

_ORDERED_LOOK_S = 1.0


class Detached(PosttrainError):
    """The executor was asked to leave; the experiment goes on without it."""


class Observation:
    """All that the log and the validation file of one attempt tell."""

    def __init__(
        self, attempt: AttemptPaths, *, machine: Machine, validation: Path | None, validation_offset: int
    ) -> None:
        self.detector = Detector()
        self.progress = ProgressReader()
        self.metrics = MetricsReader()
        self.log = LogReader(attempt.log, machine=machine, sinks=(self.detector, self.progress, self.metrics))
        self._machine = machine
        self._validation = validation
        self._validation_offset = validation_offset

    def advance(self) -> None:
        """Take in what is new."""
        self.log.advance()
        if self._validation is not None:
            raw = self._machine.read(self._validation, offset=self._validation_offset)
            self.metrics.read_file((raw or b"").decode("utf-8", "replace"))


@dataclass(frozen=True)
class Budget:
    """The limit of the experiment on the clock."""

    started_at: float
    deadline: float

    def share_used(self, now: float) -> float:
        return (now - self.started_at) / max(1.0, self.deadline - self.started_at)


def watch(
    attempt: AttemptPaths,
    *,
    machine: Machine,
    observation: Observation,
    policy: Policy,
    budget: Budget,
    wake: Wake,
) -> Ending:
    """Until the attempt has ended. Raises Detached when woken; a machine out of reach is waited for."""
    look = 0
    ordered = False
    while True:
        seconds = _ORDERED_LOOK_S if ordered else policy.look_s(look)
        probe = machine.wait(attempt, seconds=seconds, wake=wake)
        if wake.is_set:
            raise Detached("the executor left; the experiment goes on")
        if probe.state == "unknown":
            if time.time() > budget.deadline + policy.unreachable_after_s:
                return _given_up(budget)
            wake.sleep(min(seconds, policy.first_look_s))
            continue
        observation.advance()
        if probe.state == "ended" and probe.status is not None:
            return ending_of(probe.status, alive=False, now=time.time())
        if not ordered and probe.status is not None:
            reason = reason_to_end(observation, probe.status, policy=policy, budget=budget, now=time.time())
            if reason is not None:
                order_end(attempt, reason=reason, machine=machine)
                ordered = True
        look += 1


def reason_to_end(
    observation: Observation, status: Status, *, policy: Policy, budget: Budget, now: float
) -> str | None:
    """stuck, nan or plateau; None for a run that must be left alone."""
    if status.idle_s > policy.stuck_after_s:
        return "stuck"
    if observation.detector.diverged is not None:
        return "nan"
    late = budget.share_used(now) >= policy.plateau_share
    if late and on_plateau(observation.metrics.evaluations, points=policy.plateau_points):
        return "plateau"
    return None


def order_end(attempt: AttemptPaths, *, reason: str, machine: Machine) -> None:
    """Tell the wrapper to end the command."""
    machine.write(attempt.stop, json.dumps({"reason": reason, "at": time.time()}).encode())


def _given_up(budget: Budget) -> Ending:
    return Ending(cause="lost", exit_code=None, started_at=budget.started_at, ended_at=budget.deadline)
