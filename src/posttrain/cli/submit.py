"""`posttrain submit`: for agents inside a workspace; plain curl does the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from posttrain.core.errors import UsageError

_URL = "GRADING_SERVER_URL"


def submit(
    path: Annotated[str, typer.Argument(help="Checkpoint folder below output/.")],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once it is accepted.")] = False,
    final: Annotated[bool, typer.Option("--final", help="Hold this one against the test split.")] = False,
    note: Annotated[str | None, typer.Option(help="A remark, kept with the grade.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU to grade on.")] = None,
) -> int:
    """Hand in a checkpoint, from inside a run's workspace.

    Prints the answer of the grading server. Exit code 0: graded (or accepted, with --no-wait); 1: not
    graded, the answer says why; 2: wrong use.
    """
    from posttrain.grading import client

    url = os.environ.get(_URL)
    if not url:
        raise UsageError(f"{_URL} is not set; this command is for agents inside a run's workspace")
    here = Path(path).absolute()  # the server takes relative paths from the workspace, people from here
    chosen = str(here) if here.exists() else path
    reply = client.submit(url, chosen, wait=not no_wait, final=final, note=note, gpu=gpu)
    print(reply.text())
    return reply.exit_code
