"""The entry point: finds the command, runs it, and turns every error into one line and an exit code.

A command is a function in a module of this package, or a typer app for a group of them; COMMANDS names
it. Its module is imported when the command is called, so that `--help` imports none of them.

Exit codes: 0 a result exists; 1 nothing graded, or a check found faults; 2 wrong use or a missing
prerequisite; 128 + n stopped by a signal. A command returns its own, None being 0.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.lazy import Entry, LazyGroup
from posttrain.core.errors import PosttrainError, Stopped, UsageError, boundary

_WORK = "Train and grade"
_LOOK = "Look around"
_CHECK = "Check"


COMMANDS: dict[str, Entry] = {
    "run": Entry("run:run", "One run, start to record.", _WORK),
    "grade": Entry("grade:grade", "Grade a model folder outside any run.", _WORK),
    "baseline": Entry("baseline:baseline", "Measure or show the baseline of a model on a task.", _WORK),
    "submit": Entry("submit:submit", "Hand in a checkpoint, from inside a run's workspace.", _WORK),
    "list": Entry("listing:list_", "List tasks, agents, models or runs.", _LOOK),
    "show": Entry("show:show", "Show one run: what was asked, what happened, every submission.", _LOOK),
    "results": Entry("results:results", "The table over runs, with intervals and lifts.", _LOOK),
    "logs": Entry("logs:logs", "Print or follow the logs of a run.", _LOOK),
    "report": Entry(
        "report:app", "Iteration reports: append one, check them, print metrics, make a page.", _CHECK
    ),
    "blueprint": Entry("blueprint:app", "Experiment blueprints: check, run, look at, stop.", _WORK),
    "wait": Entry(
        "blueprint:wait",
        "Wait; exit 0 still running, 1 command ended or session gone, 2 cannot tell: look again.",
        _LOOK,
    ),
    "env": Entry("env:app", "Tool environments: list them, install one.", _WORK),
    "new": Entry("plugins:new", "Begin a task or an agent.", _WORK),
    "check": Entry("plugins:check", "Prove a task or an agent.", _CHECK),
    "verdict": Entry("verdict:verdict", "Accept or reject a closed run, in its ledger.", _CHECK),
    "doctor": Entry("doctor:doctor", "Diagnose a checkpoint; --fix writes a repaired copy.", _CHECK),
    "provenance": Entry("provenance:provenance", "Where weights lie between base and siblings.", _CHECK),
    "audit": Entry("audit:audit", "Look for contamination and forbidden places in a run.", _CHECK),
    "verify": Entry("verify:verify", "Recompute the chain of a run and every exported number.", _CHECK),
}


class _Commands(LazyGroup):
    """All commands."""

    entries = COMMANDS


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from posttrain import __version__

        print(f"posttrain {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # noqa: ARG001 (its callback handles it)
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """A lab in which agents post-train small language models and are graded honestly."""
    # here, not in main: `--help` of a folder with a broken .env must still work
    from posttrain.infra.dotenv_file import load_dotenv_file

    load_dotenv_file(Path.cwd() / ".env", os.environ)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process."""
    sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments)))


def execute(arguments: list[str]) -> int:
    """Run one command line; returns its exit code, with every error told in one line on stderr."""
    try:
        return _run(arguments)
    except Stopped as error:
        return _tell(error, error.exit_code)
    except UsageError as error:
        return _tell(error, 2)
    except PosttrainError as error:
        return _tell(error, 1)


@contextmanager
def _hidden_tasks_told() -> Iterator[None]:
    """UsageError where tasks cannot be imported: an agent's view covers what makes hidden rows."""
    try:
        yield
    except ImportError as error:
        if importlib.util.find_spec("posttrain.benchmarks.registry") is not None:
            raise
        raise UsageError(
            "this command works with the lab's tasks, which a workspace does not show; what works inside it: "
            "posttrain submit, doctor, provenance --base PATH, report append, report check"
        ) from error


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    with (
        boundary(PosttrainError, "unexpected failure, please report it (POSTTRAIN_DEBUG=1 shows where)"),
        _hidden_tasks_told(),
    ):
        try:
            outcome = command.main(args=arguments, prog_name="posttrain", standalone_mode=False)
        except typer.TyperException as error:
            if not error.format_message():  # no arguments at all: the help was printed
                return 2
            raise UsageError(_wrong_use(error)) from error
        except typer.Abort:
            return 130
    return outcome if isinstance(outcome, int) else 0


def _wrong_use(error: typer.TyperException) -> str:
    """The parser's complaint in one line, and where to read on."""
    context = getattr(error, "ctx", None)
    path = "posttrain" if context is None else context.command_path
    said = " ".join(error.format_message().split()).replace(": Value error, ", ": ")
    return f"{said} (see {path} --help)"


def _tell(error: PosttrainError, code: int) -> int:
    if os.environ.get("POSTTRAIN_DEBUG"):
        traceback.print_exception(error)
    print(f"posttrain: {' '.join(str(error).split())}", file=sys.stderr)
    return code
