"""What an agent needs of the host before it can start: programs, shown to it read-only, and a key.

A program is what its variable names or, without it, what the operator's PATH has. Programs from npm
come with their `node_modules` and with the node that runs them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import UsageError
from posttrain.core.paths import LabPaths
from posttrain.core.specs import AgentSpec
from posttrain.infra.tool_envs.environments import require


@dataclass(frozen=True)
class Program:
    """A program that was found."""

    variable: str
    path: Path
    """Links are followed, but for the Python of an environment: what they lie in need not be shown."""
    shown: tuple[Path, ...]
    """What has to be visible to run it."""


def find_programs(agent: AgentSpec, host: Mapping[str, str], *, lab: LabPaths) -> tuple[Program, ...]:
    """All programs and tool environments that the agent names. UsageError for one that is not there."""
    programs = [_find(agent, variable, name, host) for variable, name in agent.programs.items()]
    for name in agent.tool_envs:
        tool = require(name, lab, host, needed_for=f"agent {agent.id!r}", field="tool_envs")
        shown = (
            tool.python,
            *tool.shown,
        )  # a script that stands for an interpreter lies in none of its prefixes
        programs.append(Program(tool.recipe.interpreter_variable, tool.python, shown))
    return tuple(programs)


def check_keys(agent: AgentSpec, host: Mapping[str, str], pass_env: Iterable[str]) -> None:
    """UsageError if no key is set of those that the agent asks for; any that is passed by name counts."""
    if not agent.keys or any(host.get(name, "").strip() for name in agent.keys):
        return
    rest = f" (or {', '.join(agent.keys[1:])})" if agent.keys[1:] else ""
    if not any(_is_key(name) for name in agent.keys):
        raise UsageError(
            f"agent {agent.id!r}: {agent.keys[0]} is not set{rest}; .env.example tells what it means"
        )
    if any(_is_key(name) for name in pass_env):
        return
    raise UsageError(
        f"agent {agent.id!r} needs a key: set {agent.keys[0]}{rest}, or pass another one with --pass-env NAME"
    )


def _is_key(name: str) -> bool:
    return name.endswith(("_KEY", "_TOKEN"))


def _find(agent: AgentSpec, variable: str, name: str, host: Mapping[str, str]) -> Program:
    stated = host.get(variable, "").strip()
    wanted = str(Path(stated).expanduser()) if stated else name
    found = shutil.which(wanted, path=host.get("PATH", os.defpath))
    if found is None:
        what = f"{variable}: {stated} is no program" if stated else f"the program {name!r} is not on the PATH"
        raise UsageError(
            f"agent {agent.id!r}: {what}; install it (docs/command-line-agents.md says how) or name it: "
            f"{variable}=/path/to/{name}"
        )
    path = Path(found).resolve()
    return Program(variable, path, tuple(dict.fromkeys(_shown(path, host))))


def _shown(path: Path, host: Mapping[str, str]) -> Iterator[Path]:
    packages = [folder for folder in path.parents if folder.name == "node_modules"]
    yield packages[-1] if packages else path
    if _runs_on_node(path):
        node = shutil.which("node", path=host.get("PATH", os.defpath))
        if node is not None:
            yield Path(node)


def _runs_on_node(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"node" in first
