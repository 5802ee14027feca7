"""`posttrain report append|check|metrics|html`: a group whose commands are imported when they are called.

Agents call it inside their sandbox, where parts of the package are hidden; so nothing is imported here.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

HELP = "Iteration reports: append one, check them, print metrics, make a page."

COMMANDS: dict[str, tuple[str, str]] = {
    "append": ("report_append:append", "Append one iteration to summary.md and summary.jsonl."),
    "check": ("report_check:check", "Hold summary.md and summary.jsonl against rules and facts."),
    "metrics": ("report_metrics:metrics", "Print the content of metrics.json, computed anew."),
    "html": ("report_html:html", "Write one page about a run, to give away."),
}
"""`module:function` in this package, and the first line of its help."""


class ReportGroup(TyperGroup):
    """Knows its commands by name."""

    _only_names = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if self._only_names:
            return TyperCommand(cmd_name, help=entry[1])
        module, attribute = entry[0].split(":")
        single = typer.Typer(add_completion=False)
        single.command(name=cmd_name)(getattr(importlib.import_module(f"posttrain.cli.{module}"), attribute))
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # the names are what typer searches for "did you mean"
        self.commands = dict.fromkeys(COMMANDS, TyperCommand("name"))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._only_names = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._only_names = False


app = typer.Typer(cls=ReportGroup, no_args_is_help=True, add_completion=False)


@app.callback(help=HELP)
def _group() -> None:
    pass
