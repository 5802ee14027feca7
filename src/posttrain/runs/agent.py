"""Runs the agent until it ends, its time is over, or the lab has to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import PosttrainError
from posttrain.core.specs import AgentSpec
from posttrain.infra.processes import Command, Limits, Spawner
from posttrain.infra.sandbox import View
from posttrain.runs.clock import Clock
from posttrain.runs.history import AgentEnd
from posttrain.runs.signals import StopSignals

POLL_S = 0.5
GRACE_S = 10.0
"""Between SIGTERM and SIGKILL for every process of the agent's tree."""


@dataclass(frozen=True)
class Start:
    """How the agent is started."""

    agent: AgentSpec
    workspace: Path
    env: Mapping[str, str]
    view: View
    limits: Limits
    log: Path

    @property
    def command(self) -> Command:
        script = self.agent.folder / self.agent.start
        return Command(
            argv=["bash", str(script)],
            cwd=self.workspace,
            env=self.env,
            stdout=self.log,
            stderr="stdout",
            limits=self.limits,
            view=self.view,
        )


def supervise(
    start: Start,
    *,
    spawner: Spawner,
    clock: Clock,
    signals: StopSignals,
    failure: Callable[[], PosttrainError | None],
    time_over: Callable[[], None],
    ended: Callable[[AgentEnd], None],
) -> AgentEnd:
    """Start the agent and return when no process of its tree is left.

    `time_over` is called before anything is stopped. `ended` is called once the agent's end is known: for
    one that ended by itself that is before its leftovers are stopped, so that a death of ours meanwhile
    does not start it again. A failure of the grader, or a signal, stops the tree too and is raised.
    """
    with spawner.spawn(start.command, name="agent") as child:
        with signals.interruptible():
            code = None
            while code is None and not clock.expired():
                code = child.wait(min(POLL_S, clock.remaining()))
                fault = failure()
                if fault is not None:
                    raise fault
        time_over()
        clock.stop(exit_code=code)
        by_itself = code is not None
        if by_itself:
            ended(end_of(code, clock, at_deadline=False))
        child.stop(GRACE_S)
    end = end_of(child.poll(), clock, at_deadline=not by_itself)
    if not by_itself:
        ended(end)
    return end


def end_of(exit_code: int | None, clock: Clock, *, at_deadline: bool) -> AgentEnd:
    """The agent's end, with what it used of its budget."""
    return AgentEnd(exit_code=exit_code, at_deadline=at_deadline, used_s=round(clock.used(), 3))
