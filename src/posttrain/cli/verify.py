"""`posttrain verify`: recompute a run from what it left."""

from __future__ import annotations

from typing import Annotated

import typer

from posttrain.cli.context import find_run, open_lab
from posttrain.cli.output import print_json, printable


def verify(
    run: Annotated[str, typer.Argument(help="Id or folder of the run.")],
    head: Annotated[str | None, typer.Option(help="Head hash of the ledger, kept elsewhere.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Recompute the chain of a run and every exported number.

    Exit code 1 if anything does not follow from the ledger and the items. With --head also that the ledger
    is the one that had this head; without it that everything agrees with itself.
    """
    from posttrain.runs.verification import verify_run

    lab = open_lab()
    checks = verify_run(find_run(lab.paths, run), lab.paths, head=head)
    sound = all(check.ok for check in checks)
    if as_json:
        print_json({"ok": sound, "checks": [check.model_dump() | {"ok": check.ok} for check in checks]})
        return 0 if sound else 1
    for check in checks:
        print(f"{'ok' if check.ok else 'FAULT':<7}{check.name:<10}{check.detail}")
        for fault in check.faults:
            print(printable(f"       {fault}"))
    return 0 if sound else 1
