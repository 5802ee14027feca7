"""`posttrain report check`: an agent's summary against rules and facts."""

from __future__ import annotations

from typing import Annotated

import typer

from posttrain.cli.output import one_line, print_json
from posttrain.cli.report_facts import in_workspace, of_run
from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.findings import RULES, Finding, SummaryCheck


def check(
    run: Annotated[
        str | None, typer.Argument(help="Id or folder of a run; omitted inside a workspace.")
    ] = None,
    notes: Annotated[bool, typer.Option("--notes", help="Also what could not be checked.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Hold summary.md and summary.jsonl against rules and facts.

    Facts are scores.json, the grading server, logs and the scripts below code/; for a run of the lab also its
    ledger. Exit code 1 if there is a finding; each has its line, the rule and the remedy.
    """
    place = in_workspace() if run is None else of_run(run)
    result = check_summary(place.markdown, place.rows, place.facts)
    if as_json:
        print_json(as_data(result))
    else:
        print_check(result, notes=notes)
    return 0 if result.ok else 1


def as_data(result: SummaryCheck) -> dict[str, object]:
    """The result as plain data, each finding with its rule in words."""
    findings = [finding.model_dump() | {"rule_says": RULES[finding.rule]} for finding in result.findings]
    return {
        "ok": result.ok,
        "iterations": result.iterations,
        "findings": findings,
        "notes": [note.model_dump() for note in result.notes],
    }


def print_check(result: SummaryCheck, *, notes: bool) -> None:
    for finding in result.findings:
        print(finding_text(finding))
    if notes:
        for note in result.notes:
            print(one_line(f"{note.file}:{note.line}: not checkable: {note.message}"))
    told = f"{result.iterations} iteration{'' if result.iterations == 1 else 's'}"
    found = f"{len(result.findings)} finding{'' if len(result.findings) == 1 else 's'}"
    claims = "claim" if len(result.notes) == 1 else "claims"
    unknown = f", {len(result.notes)} {claims} not checkable" if result.notes else ""
    print(f"{'ok' if result.ok else 'FAULT'}: {told}, {found}{unknown}")


def finding_text(finding: Finding) -> str:
    """One line: where, which rule, what is wrong, what to do."""
    rule = f"rule {finding.rule}" if finding.rule.isdigit() else finding.rule
    return one_line(f"{finding.file}:{finding.line}: {rule}: {finding.message}. Remedy: {finding.remedy}.")
