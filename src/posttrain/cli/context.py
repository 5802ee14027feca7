"""The world of a command: settings, lab home and registries, built once and handed down."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.core.errors import UsageError
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.infra.models import Sources
from posttrain.infra.settings import Settings, read_settings

if TYPE_CHECKING:
    from posttrain.benchmarks.registry import TaskRegistry
    from posttrain.runs.lab import Lab

ENGINE_HELP = "What generates texts. auto: transformers, on the GPU where there is one."


@dataclass(frozen=True)
class ModelShelf:
    """Where base models are kept and come from; also at hand where tasks are hidden."""

    paths: LabPaths
    sources: Sources
    offline: bool


def open_shelf() -> ModelShelf:
    """What commands about checkpoints need. It names no task, so it works inside an agent's workspace too."""
    settings = read_settings()
    paths = LabPaths(settings.home)
    _check_home(paths.home, writable=False)
    return ModelShelf(paths, _sources(settings, dict(os.environ)), settings.hub_offline)


def open_lab(*, writable: bool = False) -> Lab:
    """The lab that the environment describes. Creates nothing.

    UsageError if a variable cannot be read or the home is no folder; with `writable` also if nothing can
    be kept in it.
    """
    from posttrain.agents import registry as agent_registry
    from posttrain.agents.registry import AgentRegistry
    from posttrain.runs.lab import Lab

    settings = read_settings()
    paths = LabPaths(settings.home)
    _check_home(paths.home, writable=writable)
    host = dict(os.environ)
    return Lab(
        paths=paths,
        tasks=_tasks(settings, paths),
        agents=AgentRegistry((agent_registry.BUILT_IN, paths.agents, *settings.agents)),
        sources=_sources(settings, host),
        offline=settings.hub_offline,
        host_env=host,
        python=Path(sys.executable),
        launch_folder=Path.cwd(),
    )


def _sources(settings: Settings, host: dict[str, str]) -> Sources:
    return Sources(adopted=settings.adopted, data=settings.data, environment=host)


def _tasks(settings: Settings, paths: LabPaths) -> TaskRegistry:
    from posttrain.benchmarks import registry as task_registry
    from posttrain.benchmarks.registry import TaskRegistry

    roots = (task_registry.BUILT_IN, paths.benchmarks, *settings.benchmarks)
    return TaskRegistry(roots, smith_root=settings.smith)


def _check_home(home: Path, *, writable: bool) -> None:
    nearest = next(folder for folder in (home, *home.parents) if folder.exists())
    if not nearest.is_dir():
        raise UsageError(f"POSTTRAIN_HOME: {nearest} is not a folder")
    # access, not a trial file: a later refusal of the same command must leave nothing behind
    if writable and not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"POSTTRAIN_HOME: {home} cannot be written to; set it to a folder of yours")


def find_run(lab: LabPaths, run: str) -> RunPaths:
    """The folder of a run by its id, or by its path; UsageError if there is none."""
    if "/" in run:
        found = _run_at(lab, Path(run))
    elif run not in {"", ".", ".."} and not set(run) & set("*?["):
        found = _run_named(lab, run)
    else:
        found = None
    if found is not None:
        return found
    raise UsageError(f"RUN: no run {run!r} in {lab.home} (see posttrain list runs)")


def _run_at(lab: LabPaths, folder: Path) -> RunPaths | None:
    """The run whose folder this is; never one that an agent has set up inside its own."""
    try:
        place = folder.resolve()
        is_run = place.parent.parent == lab.runs.resolve() and RunPaths(place).request.is_file()
    except (OSError, RuntimeError):  # a name too long, a link to itself
        return None
    return RunPaths(place) if is_run else None


def _run_named(lab: LabPaths, run: str) -> RunPaths | None:
    try:
        return lab.find_run(run)
    except OSError:  # a name too long
        return None
