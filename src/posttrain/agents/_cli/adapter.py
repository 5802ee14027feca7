"""What the driver has to know of one command-line tool: how to start it, and what its output means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Place:
    """Where a tool works and with which settings."""

    folder: Path
    """Of the agent."""
    workspace: Path
    home: Path
    """The tool's own, inside the workspace: its sessions survive a resumed run."""
    env: Mapping[str, str]
    """Of the agent, as the lab made it."""

    @property
    def model(self) -> str:
        return self.env.get("LLM_MODEL", "").strip()

    @property
    def effort(self) -> str:
        """How hard the model is to think, in the tool's own words; empty for its default."""
        return self.env.get("EFFORT", "").strip()


@dataclass(frozen=True)
class Usage:
    """Tokens and dollars, as the tool tells them."""

    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.dollars + other.dollars,
        )


@dataclass(frozen=True)
class Heard:
    """What one event of a tool means."""

    lines: tuple[str, ...] = ()
    """For people."""
    piece: str = ""
    """A part of a sentence that goes on with the next event."""
    session: str | None = None
    """The conversation's id, to continue it by."""
    worked: bool = False
    """A tool was used, so the model does more than talk."""
    usage: Usage | None = None
    """Of this turn, or a part of it."""
    total: Usage | None = None
    """Of the whole conversation so far, from a tool that tells that instead."""


class Adapter(Protocol):
    """One command-line tool."""

    name: str
    """In the log."""
    program: str
    variable: str
    """That names the program where it is not on the PATH."""
    install: str
    """The command that installs it."""
    keys: tuple[str, ...]
    """One of these must be set."""
    version: tuple[str, ...]
    """Arguments with which the program tells its version."""
    guide: str
    """The file of standing orders that the tool reads by itself."""

    def prepare(self, place: Place, /) -> dict[str, str]:
        """Write the tool's settings into its home; the variables to lay over the agent's own."""
        ...

    def argv(self, place: Place, *, session: str | None) -> list[str]:
        """Arguments for a prompt on standard input, in a new conversation or the one named."""
        ...

    def read(self, event: Mapping[str, Any]) -> Heard:
        """What an event says. May raise anything for one of an unknown shape; it is then kept as it is."""
        ...


def text_of(content: Any) -> str:
    """The words of a message's content, in the forms that they come in."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, Mapping):
        return text_of(content.get("text", content.get("content", "")))
    return ""


def called(tool: str, arguments: Any) -> str:
    """The line for a tool that is used."""
    command = arguments.get("command") if isinstance(arguments, Mapping) else None
    shown = command if isinstance(command, str) else _short(arguments)
    return f"$ {tool}: {shown}"


def _short(arguments: Any) -> str:
    if not isinstance(arguments, Mapping):
        return str(arguments)
    return ", ".join(f"{name}={value}" for name, value in arguments.items())
