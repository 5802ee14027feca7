"""`posttrain verdict`: an operator's word on a closed run."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from posttrain.cli.context import find_run, open_lab
from posttrain.cli.output import print_json
from posttrain.core.errors import UsageError


def verdict(
    run: Annotated[str, typer.Argument(help="Id or folder of the run.")],
    accept: Annotated[bool, typer.Option("--accept", help="The result stands.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="The result does not count.")] = False,
    why: Annotated[str, typer.Option("--why", help="The reason, in a sentence. Required.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Accept or reject a closed run, in its ledger.

    A rejected run stays in the tables as not scored. The last word counts; no number of the run changes.
    """
    from posttrain.runs.words import say_word

    if accept == reject:
        raise UsageError("--accept, --reject: name one of the two")
    if not why.strip():
        raise UsageError("--why: say the reason in a sentence")
    paths = find_run(open_lab(writable=True).paths, run)
    word, head = say_word(paths, accepted=accept, why=" ".join(why.split()), by=getpass.getuser())
    if as_json:
        print_json({"run_id": paths.run_id, **word.model_dump(), "ledger_head": head})
        return
    print(f"{paths.run_id} {'accepted' if word.accepted else 'rejected'} by {word.by}: {word.why}")
    print(f"ledger head {head}")
