"""What a check of summaries says: findings to mend, and notes on what could not be checked."""

from __future__ import annotations

from posttrain.core.frozen import Frozen

FACTS = "facts"
"""The rule beside the ten: numbers are those of scores.json, the ledger and the clock."""

RULES: dict[str, str] = {
    "1": "append, never overwrite",
    "2": "iterations are numbered 1, 2, 3, …",
    "3": "train type and hyper-parameters come from the source, or are unknown",
    "4": "a failure has a cause that can be found and a failure_type",
    "5": "what was done and why can be checked, with evidence of the last round",
    "6": "problem/progress has a process metric or a failure type",
    "7": "key code of 3 to 5 lines, one longer snippet of at most 40",
    "8": "a repeated cause says what is new",
    "9": "summary.jsonl has the same rounds, in numbers only",
    "10": "every section is complete",
    FACTS: "numbers agree with scores.json, ledger and clock",
}


class Finding(Frozen):
    """Something that is wrong, where, and what to do."""

    file: str
    line: int
    """1 for the first."""
    rule: str
    """A key of RULES."""
    iteration: int | None = None
    message: str
    remedy: str


class Note(Frozen):
    """A claim that nothing here can confirm or refute."""

    file: str
    line: int
    iteration: int | None = None
    message: str


class SummaryCheck(Frozen):
    """What came of holding a summary against the facts."""

    iterations: int
    """Sections in summary.md."""
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def broken(self) -> dict[str, int]:
        """How many findings each rule has."""
        return {
            rule: count for rule in RULES if (count := sum(finding.rule == rule for finding in self.findings))
        }
