"""What an agent's config.yaml may say. Only `name` and `start` are needed: the ancestor's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from posttrain.core.frozen import Frozen

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _variable_name(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an environment variable")
    return name


def _variable_text(value: Any) -> str:
    """Numbers become their text; what YAML reads as something else must be quoted by the author."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is neither a string nor a number; put it in quotes")  # noqa: TRY004
    text = str(value)
    if "\0" in text:
        raise ValueError("an environment variable cannot hold a NUL character")
    return text


def _empty_if_none(value: Any) -> Any:
    """`env_vars:` with nothing below it is read by YAML as null and meant as empty."""
    return {} if value is None else value


def _inside(path: str) -> str:
    parts = PurePosixPath(path)
    if not path.strip() or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise ValueError(f"{path!r} must be a path inside the agent's folder")
    return path


def _absolute(path: str) -> str:
    if ".." in PurePosixPath(path).parts or not path.startswith(("/", "~/")):
        raise ValueError(f"{path!r} must be absolute or start with ~/, without '..'")
    return path


def _plain_names(value: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in value:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise ValueError(f"{name!r} is not a name of letters, digits, '.', '_' and '-'")
    return value


VariableName = Annotated[str, AfterValidator(_variable_name)]
Variables = Annotated[
    dict[VariableName, Annotated[str, BeforeValidator(_variable_text)]], BeforeValidator(_empty_if_none)
]


class SandboxManifest(Frozen):
    bind: tuple[Annotated[str, AfterValidator(_absolute)], ...] = ()
    """Extra paths that the agent sees read-only."""


class AgentManifest(Frozen):
    """config.yaml of an agent folder."""

    name: str = Field(min_length=1, max_length=200)
    description: str = ""
    start: Annotated[str, AfterValidator(_inside)] = "start.sh"
    """The script that bash runs; the ancestor, too, took start.sh where nothing was said."""
    aliases: tuple[str, ...] = ()
    """Further names under which `--agent` finds this folder."""
    env_vars: Variables = Field(default_factory=dict)
    profiles: Annotated[
        dict[str, Variables], BeforeValidator(_empty_if_none), AfterValidator(_plain_names)
    ] = Field(default_factory=dict)
    """`name:profile` lays these variables over `env_vars`."""
    pass_env: tuple[VariableName, ...] = ()
    keys: tuple[VariableName, ...] = ()
    """One of these must be set on the host: without any the run is refused before it starts."""
    programs: dict[VariableName, Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]] = Field(
        default_factory=dict
    )
    """`{TOOL_BIN: tool}`: `tool` is taken from $TOOL_BIN or the PATH and shown to the agent, read-only."""
    needs: tuple[Literal["train", "math", "sweep"], ...] = ()
    """Extras of posttrain: without one the run is refused before it starts."""
    network: Literal["grader", "host"] = "host"
    """Folders of others may need the world; the ones that ship say `grader` where that is enough."""
    sandbox: SandboxManifest = SandboxManifest()
    tool_envs: tuple[str, ...] = ()
    control: bool = False
