"""Rule 1: nothing that was there when something was handed in has changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from posttrain.grading.witness import ReportMark, prefix_digests
from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.findings import Finding


def check_past(files: Mapping[str, bytes | None], facts: Facts) -> Iterator[Finding]:
    """One finding a file: the first place at which it is not what it was."""
    for name, raw in files.items():
        marks = [(moment.number, mark) for moment in facts.moments if (mark := moment.reports.get(name))]
        sizes = {prefix.size for _, mark in marks for prefix in mark.prefixes}
        now = prefix_digests(raw or b"", sizes)
        changed = (_changed(name, raw, mark, number, now) for number, mark in marks)
        finding = next((found for found in changed if found is not None), None)
        if finding is not None:
            yield finding


def _changed(
    name: str, raw: bytes | None, mark: ReportMark, number: int, now: Mapping[int, str]
) -> Finding | None:
    intact = 0
    for prefix in mark.prefixes:
        if now.get(prefix.size) != prefix.digest:
            break
        intact = prefix.size
    else:
        return None
    what = "is gone" if raw is None else "was changed or shortened"
    return Finding(
        file=name,
        line=(raw or b"").count(b"\n", 0, intact) + 1,
        rule="1",
        message=f"what stood from here on when submission {number} was handed in {what}",
        remedy="append only; corrections belong into a later iteration",
    )
