"""`posttrain report html`: one run as one page to give away."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.context import find_run, open_lab
from posttrain.cli.output import print_json
from posttrain.cli.run_page import run_page
from posttrain.cli.show import read_run
from posttrain.core.errors import UsageError
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.infra.files import write_atomic
from posttrain.reports.page import render_page
from posttrain.runs.hiding import blinds_for


def html(
    run: Annotated[str, typer.Argument(help="Id or folder of the run.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page, or a folder for it. Default: <run_id>.html here; - prints it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Write one page about a run, to give away.

    It holds figure, submissions, summary and check, metrics, plan and the ends of the logs; nothing in it
    comes from elsewhere and nothing acts. It tells no hidden item, no key and no path of this machine. A run
    that goes on is shown as it stands.
    """
    here = open_lab()
    paths = find_run(here.paths, run)
    to_stdout = out is not None and str(out) == "-"
    if to_stdout and as_json:
        raise UsageError("--json: the page itself goes to standard output with --out -")
    target = Path() if to_stdout else _target(out, paths, here.paths)
    shown = read_run(paths)
    text = render_page(run_page(shown), blinds=blinds_for(paths, shown.request, shown.plan, here))
    if to_stdout:
        sys.stdout.buffer.write(text.encode())
        return
    try:
        write_atomic(target, text)
    except OSError as error:
        raise UsageError(f"--out: {target}: {error.strerror}") from error
    if as_json:
        print_json({"run_id": paths.run_id, "path": str(target), "bytes": len(text.encode())})
    else:
        print(target)


def _target(out: Path | None, run: RunPaths, lab: LabPaths) -> Path:
    """Where the page goes; never into a run, whose folder is closed with what it holds."""
    asked = Path.cwd() if out is None else out
    try:
        target = (asked / f"{run.run_id}.html" if asked.is_dir() else asked).resolve()
        fault = _fault(target, lab)
    except (OSError, RuntimeError) as error:  # a name too long, a folder closed to us; a link to itself
        raise UsageError(f"--out: {asked}: {getattr(error, 'strerror', None) or error}") from error
    if fault:
        raise UsageError(f"--out: {target} {fault}")
    return target


def _fault(target: Path, lab: LabPaths) -> str | None:
    if target.is_relative_to(lab.runs.resolve()):
        return "lies among the runs, where verify knows every file; name another place"
    if not target.parent.is_dir():
        return f"cannot be written: {target.parent} is no folder"
    return "is no regular file" if target.exists() and not target.is_file() else None
