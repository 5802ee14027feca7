"""Agent folders: where they are found, and what their config.yaml says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from posttrain.agents.manifest import AgentManifest
from posttrain.core.errors import PluginError, UsageError
from posttrain.core.faults import fault_text
from posttrain.core.specs import AgentSpec

MANIFEST = "config.yaml"
BUILT_IN = Path(__file__).parent
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class AgentRegistry:
    """All agents below some roots; the first root that holds a name wins.

    Folders are looked at when asked, never imported; a broken one is listed with its reason and
    disturbs no other.
    """

    def __init__(self, roots: Sequence[Path] = (BUILT_IN,)) -> None:
        self._roots = tuple(roots)

    def names(self) -> list[str]:
        """Names of the agents that can be loaded, in alphabetical order."""
        return sorted(self._scan()[0])

    def broken(self) -> dict[str, str]:
        """Folders that call themselves an agent and are none, with the reason in a line."""
        return self._scan()[1]

    def load(self, agent_id: str) -> AgentSpec:
        """The agent `name` or `name:profile`; UsageError in one line for anything that cannot be run."""
        name, colon, profile = agent_id.partition(":")
        folder = self.folder(name)
        try:
            manifest = _read(folder)
            return _spec(manifest, folder, profile if colon else None)
        except PluginError as error:
            raise UsageError(f"agent {name!r} is broken: {error}") from error

    def folder(self, name: str) -> Path:
        """The folder of an agent, broken or not; UsageError naming the known ones if there is none."""
        if not _NAME.fullmatch(name) or ".." in name:
            raise UsageError(f"--agent: {name!r} is not a name; {self._known()}")
        for folder in self._folders().values():
            if folder.name == name:
                return folder
        for manifest, folder in self._scan()[0].values():
            if name in manifest.aliases:
                return folder
        raise UsageError(f"--agent: no agent {name!r}; {self._known()}")

    def _known(self) -> str:
        return f"known agents: {', '.join(self.names()) or 'none'}"

    def _folders(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for root in self._roots:
            if root.is_dir():
                for folder in sorted(root.iterdir()):
                    if (folder / MANIFEST).is_file() and not folder.name.startswith("_"):
                        found.setdefault(folder.name, folder)
        return found

    def _scan(self) -> tuple[dict[str, tuple[AgentManifest, Path]], dict[str, str]]:
        usable: dict[str, tuple[AgentManifest, Path]] = {}
        broken: dict[str, str] = {}
        for name, folder in self._folders().items():
            try:
                usable[name] = (_read(folder), folder)
            except PluginError as error:
                broken[name] = str(error)
        return usable, broken


def _read(folder: Path) -> AgentManifest:
    """The manifest of a folder whose parts are all there; PluginError in a line otherwise."""
    if not _NAME.fullmatch(folder.name) or ".." in folder.name:
        raise PluginError(
            f"the folder's name {folder.name!r} may hold letters, digits, '.', '_' and '-' only"
        )
    path = folder / MANIFEST
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PluginError(f"{MANIFEST}: {_one_line(str(error))}") from error
    if not isinstance(data, Mapping):
        raise PluginError(f"{MANIFEST}: not a mapping of fields; name and start are required")
    try:
        manifest = AgentManifest.model_validate(data)
    except ValidationError as error:
        raise PluginError(f"{MANIFEST}: {_validation_line(error)}") from error
    if not (folder / manifest.start).is_file():
        raise PluginError(f"{MANIFEST}: start: there is no file {manifest.start!r} in {folder}")
    return manifest


def _spec(manifest: AgentManifest, folder: Path, profile: str | None) -> AgentSpec:
    if profile is not None and profile not in manifest.profiles:
        known = ", ".join(sorted(manifest.profiles)) or "none"
        raise UsageError(f"--agent: {folder.name!r} has no profile {profile!r}; its profiles: {known}")
    return AgentSpec(
        id=folder.name if profile is None else f"{folder.name}:{profile}",
        folder=folder.resolve(),
        name=manifest.name,
        description=manifest.description,
        start=manifest.start,
        env_vars={**manifest.env_vars, **(manifest.profiles[profile] if profile is not None else {})},
        pass_env=manifest.pass_env,
        keys=manifest.keys,
        programs=manifest.programs,
        needs=manifest.needs,
        network=manifest.network,
        bind=manifest.sandbox.bind,
        tool_envs=manifest.tool_envs,
        control=manifest.control,
        profile=profile,
    )


def _validation_line(error: ValidationError) -> str:
    """What pydantic found, as `field: reason` parts in one line."""
    parts = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(step) for step in problem["loc"])
        parts.append(f"{where}: {fault_text(problem)}" if where else fault_text(problem))
    return _one_line("; ".join(parts))


def _one_line(text: str) -> str:
    return " ".join(text.split())
