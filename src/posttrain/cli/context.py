"""The world of a command: settings, lab home and registries, built once and handed down."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from posttrain.agents import registry as agent_registry
from posttrain.agents.registry import AgentRegistry
from posttrain.benchmarks import registry as task_registry
from posttrain.benchmarks.registry import TaskRegistry
from posttrain.core.errors import UsageError
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.infra.models import Sources
from posttrain.infra.settings import Settings, read_settings


@dataclass(frozen=True)
class World:
    """Everything that the environment decides."""

    settings: Settings
    lab: LabPaths

    @cached_property
    def tasks(self) -> TaskRegistry:
        roots = (task_registry.BUILT_IN, self.lab.benchmarks, *self.settings.benchmarks)
        return TaskRegistry(roots, smith_root=self.settings.smith)

    @cached_property
    def agents(self) -> AgentRegistry:
        return AgentRegistry((agent_registry.BUILT_IN, self.lab.agents, *self.settings.agents))

    @cached_property
    def sources(self) -> Sources:
        return Sources(adopted=self.settings.adopted, data=self.settings.data, environment=dict(os.environ))

    def run(self, run_id: str) -> RunPaths:
        """The folder of a run by its id, or by its path; UsageError if there is none."""
        if "/" in run_id:
            folder = Path(run_id).resolve()
            if folder.is_relative_to(self.lab.runs.resolve()) and (folder / "request.json").is_file():
                return RunPaths(folder)
        elif run_id not in {"", ".", ".."} and not set(run_id) & set("*?["):
            found = self.lab.find_run(run_id)
            if found is not None:
                return found
        raise UsageError(f"RUN: no run {run_id!r} in {self.lab.home} (see posttrain list runs)")


def world() -> World:
    """The world as the environment describes it. Creates nothing."""
    settings = read_settings()
    home = settings.home
    if home.exists() and not home.is_dir():
        raise UsageError(f"POSTTRAIN_HOME: {home} is not a folder")
    return World(settings, LabPaths(home))


def writable_world() -> World:
    """As `world`, for commands that keep something in the lab home; UsageError if they could not."""
    made = world()
    nearest = made.lab.home
    while not nearest.exists():
        nearest = nearest.parent
    # access, not a trial file: a later refusal of the same command must leave nothing behind
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(
            f"POSTTRAIN_HOME: {made.lab.home} cannot be written to; set POSTTRAIN_HOME to a folder of yours"
        )
    return made
