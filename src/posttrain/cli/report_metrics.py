"""`posttrain report metrics`: how a run goes or went, as numbers."""

from __future__ import annotations

from typing import Annotated

import typer

from posttrain.cli.output import print_json
from posttrain.cli.report_facts import in_workspace
from posttrain.reports.summaries.facts import process_metrics


def metrics(
    run: Annotated[
        str | None, typer.Argument(help="Id or folder of a run; omitted inside a workspace.")
    ] = None,
    as_json: Annotated[  # noqa: ARG001 - it is JSON in any case
        bool, typer.Option("--json", help="The same: what is printed is JSON.")
    ] = False,
) -> None:
    """Print the content of metrics.json, computed anew.

    Inside a workspace: the numbers of AutoRL-Bench as they stand now, from scores.json and run_meta.json.
    """
    if run is None:
        facts = in_workspace().facts
        until = facts.end if facts.end is not None else facts.now
        print_json(process_metrics(facts.handed, start=facts.start, end=until, timeout_s=facts.timeout_s))
        return
    from posttrain.cli.context import find_run, open_lab
    from posttrain.runs.reporting import read_metrics

    print_json(read_metrics(find_run(open_lab().paths, run)))
