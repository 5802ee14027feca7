"""`posttrain logs`: what a run, its agent or its grading server wrote."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from posttrain.cli.context import find_run, open_lab
from posttrain.cli.output import printable
from posttrain.core.errors import UsageError
from posttrain.core.paths import RunPaths

_POLL_S = 0.3
_BLOCK = 1 << 16


def logs(
    run: Annotated[str, typer.Argument(help="Id or folder of the run.")],
    which: Annotated[Literal["agent", "run", "grading"], typer.Option(help="Whose log.")] = "run",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
) -> None:
    """Print or follow the logs of a run."""
    paths = find_run(open_lab().paths, run)
    path = {"agent": paths.agent_log, "run": paths.run_log, "grading": paths.server_log}[which]
    if not path.exists() and not (follow and not paths.record.exists()):
        raise UsageError(f"--which: run {paths.run_id} has no {path.name}")
    if follow:
        _follow(path, paths)
    else:
        with path.open("rb") as file:
            _copy(file)
        if path.stat().st_size == 0:
            print(f"posttrain: {path.name} is empty: nothing was written to it", file=sys.stderr)


def _follow(path: Path, paths: RunPaths) -> None:
    """Print what is there and what is added, until the run's record is written."""
    while not path.exists() and not paths.record.exists():
        time.sleep(_POLL_S)
    if not path.exists():
        return
    with path.open("rb") as file:
        while True:
            over = paths.record.exists()  # asked before reading: what was written before it is read below
            _copy(file)
            if over:
                return
            time.sleep(_POLL_S)


def _copy(file: BinaryIO) -> None:
    """Everything up to the end of the file. A terminal is spared the control characters of others."""
    while block := file.read(_BLOCK):
        if sys.stdout.isatty():
            sys.stdout.write(printable(block.decode("utf-8", "replace")))
        else:
            sys.stdout.buffer.write(block)
    sys.stdout.flush()
