"""What the steps of one run share once its plan is made."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.core.grading import Split
from posttrain.core.paths import RunPaths
from posttrain.core.runs import RunPlan
from posttrain.grading.ledger import Ledger
from posttrain.infra.processes import Spawner
from posttrain.runs.clock import Clock
from posttrain.runs.harness import Harness
from posttrain.runs.history import History
from posttrain.runs.isolation import Doorway
from posttrain.runs.lab import Lab, Terminal
from posttrain.runs.log import RunLog
from posttrain.runs.plan import Prepared
from posttrain.runs.secrecy import secret_values
from posttrain.runs.signals import StopSignals


@dataclass(frozen=True)
class Session:
    """A harness with a plan, a ledger and a clock."""

    harness: Harness
    prepared: Prepared
    log: RunLog
    ledger: Ledger
    clock: Clock
    url_secret: str
    """What makes the grading server's URL an authority."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no log may show."""
        passed = secret_values(self.plan, self.prepared.agent, self.lab.host_env)
        return (self.url_secret, *passed)

    @property
    def lab(self) -> Lab:
        return self.harness.lab

    @property
    def paths(self) -> RunPaths:
        return self.harness.paths

    @property
    def spawner(self) -> Spawner:
        return self.harness.spawner

    @property
    def signals(self) -> StopSignals:
        return self.harness.signals

    @property
    def terminal(self) -> Terminal:
        return self.harness.terminal

    @property
    def door(self) -> Doorway:
        return self.harness.door

    @property
    def plan(self) -> RunPlan:
        return self.prepared.plan

    @property
    def history(self) -> History:
        """The story so far, read from the ledger."""
        return History(self.ledger.rows())

    @property
    def served(self) -> Split:
        """The split whose score `/submit` returns."""
        return "val" if self.plan.request.protocol == "holdout" else "test"

    @property
    def measured(self) -> tuple[Split, ...]:
        """The splits on which the base is measured."""
        return ("val", "test") if self.plan.request.protocol == "holdout" else ("test",)

    def tell(self, text: str, *, public: bool = False) -> None:
        """One event: into run.log, to the operator and, if `public`, into the agent's view of the log."""
        self.log.event(text, public=public)
        self.terminal.say(self.log.redacted(text))
