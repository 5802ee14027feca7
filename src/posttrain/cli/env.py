"""`posttrain env`: environments of tools whose packages do not go with ours."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.context import open_lab
from posttrain.cli.output import print_json, print_table
from posttrain.cli.terminal import Console

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Tool environments: list them, install one."
)
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


@app.command("list")
def list_(as_json: _Json = False) -> None:
    """The tools there are, and which of them can be used."""
    from posttrain.infra.tool_envs.environments import listing

    lab = open_lab()
    rows = [asdict(row) for row in listing(lab.paths, lab.host_env)]
    if as_json:
        print_json(rows)
        return
    columns = ("name", "state", "python", "folder", "title")
    print_table(columns, [[row[column] for column in columns] for row in rows])


@app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="Name of the tool, as `env list` shows it.")],
    python: Annotated[
        Path | None, typer.Option(help="Interpreter to make it with [default: one that fits is looked for].")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Make the environment of a tool, or finish one that was begun."""
    from posttrain.infra.tool_envs.install import install as make
    from posttrain.infra.tool_envs.recipes import recipe

    tool = recipe(name)
    lab = open_lab(writable=True)
    wanted = None if python is None else python.expanduser().absolute()
    made = make(tool, lab.paths, host=lab.host_env, wanted=wanted, say=Console(beside_json=as_json).say)
    if as_json:
        told = {"name": name, "python": str(made.python), "packages": dict(made.packages)}
        print_json(told)
    else:
        print(f"ready: {name}, {made.python}")
