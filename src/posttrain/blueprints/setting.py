"""Everything around a blueprint that is not written in it; built by the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posttrain.blueprints.blueprint import Blueprint
from posttrain.blueprints.environment import experiment_environment
from posttrain.blueprints.machine import Machine, Wake
from posttrain.blueprints.policy import Policy
from posttrain.blueprints.repair import Repairer
from posttrain.infra.tmux import Tmux


@dataclass(frozen=True)
class Setting:
    """One for all blueprints of a command; `gpu` differs where they run side by side."""

    machine: Machine
    """Where the experiment runs."""
    here: Machine
    """Where the executor runs."""
    tmux: Tmux | None
    repairers: Sequence[Repairer]
    """Asked in this order."""
    policy: Policy
    wake: Wake
    """Set when the executor should leave."""
    tell: Callable[[str], None]
    pass_env: tuple[str, ...] = ()
    gpu: str | None = None
    keep_session: bool = False
    again: bool = False
    """Run a blueprint that has finished once more."""

    def environment(self, blueprint: Blueprint, *, gpu: str | None = None) -> dict[str, str]:
        """What a command of this blueprint gets to see."""
        return experiment_environment(self.machine.environment(), blueprint, pass_env=self.pass_env, gpu=gpu)
