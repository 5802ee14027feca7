"""Where a tool's Python is: an environment of ours, or one that the operator's variables name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.core.paths import LabPaths
from posttrain.infra.tool_envs import interpreters
from posttrain.infra.tool_envs.recipes import Recipe, names, recipe

MANIFEST = ".manifest.json"
_WHERE = "import sys, importlib.util as u; print(u.find_spec(sys.argv[1]).submodule_search_locations[0])"


class EnvManifest(Frozen):
    """envs/<tool>/.manifest.json: written last, so that only a complete environment has one."""

    tool: str
    recipe: str
    """Digest of the recipe it was made by."""
    python: str
    prefixes: tuple[Path, ...]
    packages: dict[str, str]
    """Every package with its version."""


@dataclass(frozen=True)
class ToolEnv:
    """A tool that can be used."""

    recipe: Recipe
    python: Path
    """Its interpreter."""
    shown: tuple[Path, ...]
    """What a child has to see to run it."""
    origin: str
    """`installed`, or the variable that names it."""
    packages: Mapping[str, str]
    """Versions; empty where the environment is not ours."""

    @property
    def variable(self) -> tuple[str, str]:
        """How an agent is told: name and value."""
        return self.recipe.interpreter_variable, str(self.python)


def find(tool: Recipe, lab: LabPaths, host: Mapping[str, str]) -> ToolEnv | None:
    """The environment of a tool, an operator's own first; None if there is none."""
    named = interpreters.named(tool.interpreter_variable, tool.conda_variable, host=host)
    if named is not None:
        interpreter, variable = named
        return ToolEnv(tool, interpreter.path, interpreter.prefixes, variable, {})
    folder = lab.tool_env(tool.name)
    manifest = read_manifest(folder)
    python = folder / "bin" / "python"
    if manifest is None or not python.exists():
        return None
    return ToolEnv(tool, python, (folder, *manifest.prefixes), "installed", manifest.packages)


def require(name: str, lab: LabPaths, host: Mapping[str, str], *, needed_for: str, field: str) -> ToolEnv:
    """The environment of a tool; UsageError with the command that makes it."""
    tool = recipe(name, field=field)
    found = find(tool, lab, host)
    if found is None:
        raise UsageError(
            f"{field}: {needed_for} needs the tool environment {name!r}: posttrain env install {name} "
            f"(or name an interpreter that has it with {tool.interpreter_variable})"
        )
    return found


def package_folder(env: ToolEnv, package: str) -> Path:
    """Where a package of the tool lies; UsageError if its interpreter has none of that name."""
    told = interpreters.output_of([str(env.python), "-c", _WHERE, package])
    if not told:
        raise UsageError(
            f"{env.recipe.interpreter_variable}: {env.python} has no package {package}"
            if env.origin != "installed"
            else f"{env.recipe.name}: its environment is damaged: posttrain env install {env.recipe.name}"
        )
    return Path(told)


def read_manifest(folder: Path) -> EnvManifest | None:
    """The manifest of a complete environment, None for anything else."""
    try:
        return EnvManifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError):
        return None


@dataclass(frozen=True)
class Listed:
    """One line of `posttrain env list`."""

    name: str
    title: str
    state: str
    """`installed`, `outdated`, `incomplete`, `missing`, or `by <variable>`."""
    python: str
    folder: str


def listing(lab: LabPaths, host: Mapping[str, str]) -> list[Listed]:
    """All tools that there are recipes for, and how they stand."""
    return [_listed(recipe(name), lab, host) for name in names()]


def _listed(tool: Recipe, lab: LabPaths, host: Mapping[str, str]) -> Listed:
    folder = lab.tool_env(tool.name)
    manifest = read_manifest(folder)
    try:
        found = find(tool, lab, host)
    except UsageError as error:
        return Listed(tool.name, tool.title, str(error), "", "")
    if found is not None and manifest is not None and found.origin == "installed":
        state = "installed" if manifest.recipe == tool.digest else "outdated"
        return Listed(tool.name, tool.title, state, manifest.python, str(folder))
    if found is not None:
        return Listed(tool.name, tool.title, f"by {found.origin}", "", str(found.python))
    return Listed(tool.name, tool.title, "incomplete" if folder.is_dir() else "missing", "", "")
