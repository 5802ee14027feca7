"""`posttrain audit`: look for contamination in what a run's agent left."""

from __future__ import annotations

from typing import Annotated

import typer

from posttrain.cli.context import find_run, open_lab
from posttrain.cli.output import print_json, printable


def audit(
    run: Annotated[str, typer.Argument(help="Id or folder of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Look for contamination and forbidden places in a run.

    Exit code 1 if validation or test is contaminated. No score is changed: `posttrain verdict` is yours.
    """
    from posttrain.runs.auditing import audit_closed, summary

    lab = open_lab()
    report = audit_closed(find_run(lab.paths, run), lab)
    if as_json:
        print_json({**report.model_dump(mode="json"), "flags": report.flags})
        return 1 if report.flags else 0
    print(printable(summary(report)))
    print(f"looked at {report.files} files, {report.bytes:,} bytes")
    for match in report.matches:
        share = "" if match.kind == "exact" and match.coverage == 1.0 else f" {100 * match.coverage:.0f} %"
        print(printable(f"{match.split} {match.item[:12]} {match.kind}{share} in {match.file}"))
        print(printable(f"     {' '.join(match.span.split())}"))
    for mention in report.mentions:
        print(printable(f"forbidden {mention.what} in {mention.file}:{mention.line}: {mention.text}"))
    for name in report.unread:
        print(printable(f"not read  {name}"))
    print(printable(f"flags     {', '.join(report.flags) or 'none'}"))
    return 1 if report.flags else 0
