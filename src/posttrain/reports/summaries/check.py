"""Holding summary.md and summary.jsonl against the ten rules and the facts."""

from __future__ import annotations

from posttrain.reports.summaries import rows
from posttrain.reports.summaries.code import Code
from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.findings import Finding, Note, SummaryCheck
from posttrain.reports.summaries.numbers import Numbers, check_times
from posttrain.reports.summaries.past import check_past
from posttrain.reports.summaries.rules import Stories, check_order
from posttrain.reports.summaries.text import NAME, check_complete, parse
from posttrain.reports.summaries.timing import timeline

_MOST = 500


def check_summary(markdown: bytes | None, lines: bytes | None, facts: Facts) -> SummaryCheck:
    """Every fault with its line, rule and remedy. None stands for a file that is not there."""
    notes: list[Note] = []
    findings = list(check_past({NAME: markdown, rows.NAME: lines}, facts))
    if markdown is None:
        if not findings:
            findings.append(
                Finding(
                    file=NAME,
                    line=1,
                    rule="10",
                    message="there is no summary.md",
                    remedy="posttrain report append after each round",
                )
            )
        return SummaryCheck(iterations=0, findings=tuple(findings))
    document = parse(markdown)
    line = timeline(document, facts)
    check_order(document)
    check_complete(document)
    check_times(document, facts, line)
    checks = (
        Numbers(document, facts, line),
        Code(document, facts, line, notes),
        Stories(document, facts, line, notes),
    )
    for section in document.sections:
        for check in checks:
            check.check(section)
    if not document.sections and not document.findings:
        document.add(1, "10", "there is no iteration", "posttrain report append after each round")
    findings += [*document.findings, *rows.check_rows(lines, document)]
    order = sorted(dict.fromkeys(findings), key=lambda found: (found.file != NAME, found.line, found.rule))
    return SummaryCheck(
        iterations=len(document.sections), findings=tuple(order[:_MOST]), notes=tuple(notes[:_MOST])
    )
