"""What a run needs of the world, handed in by the command line: nothing below it reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from posttrain.agents.registry import AgentRegistry
from posttrain.benchmarks.registry import TaskRegistry
from posttrain.core.engine import Progress
from posttrain.core.paths import LabPaths
from posttrain.infra.models import Sources


@dataclass(frozen=True)
class Lab:
    """One lab home with its plugins and sources."""

    paths: LabPaths
    tasks: TaskRegistry
    agents: AgentRegistry
    sources: Sources
    offline: bool
    host_env: Mapping[str, str]
    """The operator's environment, of which agents and workers get what an allow-list names."""
    python: Path
    """The interpreter that runs posttrain."""
    launch_folder: Path
    """Where the command was started; hidden from isolated agents."""


class Terminal(Protocol):
    """Where a run tells the operator what it does."""

    def say(self, line: str) -> None:
        """One line of progress."""
        ...

    def progress(self, title: str) -> AbstractContextManager[Progress]:
        """A bar with rate and ETA, or plain lines where there is no terminal."""
        ...
