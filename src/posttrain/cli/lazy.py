"""Groups of commands that are known by name and imported when one is called: `--help` imports none of them.

Nothing of the package is imported here: agents call commands in a view that hides parts of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Entry:
    """Where a command lives (`module:name` in posttrain.cli) and its line in the group's help."""

    target: str
    help: str
    panel: str | None = None


class LazyGroup(TyperGroup):
    """A group whose commands are those of `entries`."""

    entries: ClassVar[Mapping[str, Entry]]
    _only_names = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        if self._only_names:
            return TyperCommand(cmd_name, help=entry.help, rich_help_panel=entry.panel)
        return _load(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # the names are what typer searches for "did you mean"
        self.commands = dict.fromkeys(self.entries, TyperCommand("name"))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._only_names = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._only_names = False


def _load(name: str, entry: Entry) -> Any:
    module, attribute = entry.target.split(":")
    found = getattr(importlib.import_module(f"posttrain.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name=name)(found)
        found = single
    return typer.main.get_command(found)
