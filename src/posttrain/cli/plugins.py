"""`posttrain new` and `posttrain check`: begin a task or an agent, and prove it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from posttrain.cli.context import open_lab
from posttrain.cli.output import print_json, printable
from posttrain.cli.terminal import Console
from posttrain.core.errors import UsageError
from posttrain.infra.durations import parse_duration

if TYPE_CHECKING:
    from posttrain.agents.registry import AgentRegistry
    from posttrain.benchmarks.registry import TaskRegistry
    from posttrain.runs.verification import Check

new = typer.Typer(no_args_is_help=True, add_completion=False, help="Begin a task or an agent.")
check = typer.Typer(no_args_is_help=True, add_completion=False, help="Prove a task or an agent.")
_Root = Annotated[
    Path | None, typer.Option("--in", help="Where the folder is made [default: the lab home's own].")
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


@new.command("task")
def new_task(
    name: Annotated[str, typer.Argument(help="Name of the folder, which is the task's id.")],
    evaluator: Annotated[
        Literal["choice", "per_sample", "own"],
        typer.Option(
            help="choice: no code; per_sample: eval.py judges an answer; own: eval.py asks the model."
        ),
    ] = "choice",
    root: _Root = None,
) -> None:
    """A small task that works as it is."""
    from posttrain.runs import scaffold

    lab = open_lab(writable=root is None)
    _check_free(name, lab.tasks)
    place = root or lab.paths.benchmarks
    _made(
        scaffold.new_task(place, name, judging=evaluator),
        "task",
        inside=root,
        variable="POSTTRAIN_BENCHMARKS",
    )


@new.command("agent")
def new_agent(
    name: Annotated[str, typer.Argument(help="Name of the folder, which is the agent's id.")],
    root: _Root = None,
) -> None:
    """A small agent that works as it is."""
    from posttrain.runs import scaffold

    lab = open_lab(writable=root is None)
    _check_free(name, lab.agents)
    place = root or lab.paths.agents
    _made(scaffold.new_agent(place, name), "agent", inside=root, variable="POSTTRAIN_AGENTS")


def _check_free(name: str, known: TaskRegistry | AgentRegistry) -> None:
    """UsageError for the name of a plugin that is there: of two with one name only the first is ever used."""
    if name in known.names():
        raise UsageError(f"NAME: {known.folder(name)} exists already; take another name")


def _made(folder: Path, kind: str, *, inside: Path | None, variable: str) -> None:
    for path in sorted(folder.iterdir()):
        print(path)
    setting = "" if inside is None else f"{variable}={inside.resolve()} "
    print(f"next: {setting}posttrain check {kind} {folder.name}")


@check.command("task")
def check_task(
    name: Annotated[str, typer.Argument(help="Task, or task:variant.")],
    model: Annotated[
        str | None,
        typer.Option(help="Base model for the no-op run [default: a stand-in that answers nothing]."),
    ] = None,
    as_json: _Json = False,
) -> int:
    """Manifest, data, disjoint splits, gold 100, empty 0, and no gain for an untouched model."""
    from posttrain.runs import checking

    lab, terminal = open_lab(writable=True), Console(beside_json=as_json)
    return _told(checking.check_task(name, lab=lab, terminal=terminal, model=model), as_json=as_json)


@check.command("agent")
def check_agent(
    name: Annotated[str, typer.Argument(help="Agent, or agent:profile.")],
    model: Annotated[str, typer.Option(help="Base model that it trains.")] = "smollm2-135m",
    task: Annotated[str, typer.Option(help="Task that it works on.")] = "boolean",
    timeout: Annotated[str, typer.Option(help="The agent's budget.")] = "5m",
    as_json: _Json = False,
) -> int:
    """Manifest, and a run with the scripted engine: at least one submission that can be graded."""
    from posttrain.runs import checking

    lab, terminal = open_lab(writable=True), Console(beside_json=as_json)
    found = checking.check_agent(
        name,
        lab=lab,
        terminal=terminal,
        model=model,
        task=task,
        timeout_s=parse_duration(timeout, field="--timeout"),
    )
    return _told(found, as_json=as_json)


def _told(found: Iterable[Check], *, as_json: bool) -> int:
    """Each check as soon as it is done; 1 if one found faults."""
    checks: list[Check] = []
    for one in found:
        checks.append(one)
        if not as_json:
            print(
                printable(f"{'ok' if one.ok else 'FAULT':<6} {one.name:<16} {one.detail}").rstrip(),
                flush=True,
            )
            for fault in one.faults:
                print(printable(f"       {fault}"), flush=True)
    if as_json:
        print_json({"ok": all(one.ok for one in checks), "checks": checks})
    return 0 if all(one.ok for one in checks) else 1
