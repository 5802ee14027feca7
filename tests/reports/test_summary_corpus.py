"""Summaries in files: right ones without a finding, wrong ones with rule and line marked by hand.

summaries/facts/<name>/   a workspace: scores.json, run_meta.json, logs, code/
summaries/right/<case>/   summary.md, summary.jsonl and the name of their facts
summaries/wrong/*.yaml    a right one with one fault put into it, and what has to be found
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.findings import SummaryCheck
from posttrain.reports.summaries.workspace import workspace_facts

CORPUS = Path(__file__).parent / "summaries"
RIGHT = sorted(path.name for path in (CORPUS / "right").iterdir())
WRONG = sorted(path.stem for path in (CORPUS / "wrong").glob("*.yaml"))


@dataclass(frozen=True)
class Case:
    markdown: bytes
    rows: bytes | None
    facts: Facts

    def check(self) -> SummaryCheck:
        return check_summary(self.markdown, self.rows, self.facts)


def facts(name: str) -> Facts:
    folder = CORPUS / "facts" / name
    now = datetime.fromisoformat((folder / "now").read_text("utf-8").strip()).timestamp()
    known = workspace_facts(folder, now=now)
    # a checkout gives every file the time of the checkout
    return replace(known, scripts=tuple(replace(script, changed=None) for script in known.scripts))


def right(name: str) -> Case:
    folder = CORPUS / "right" / name
    return Case(
        markdown=(folder / "summary.md").read_bytes(),
        rows=(folder / "summary.jsonl").read_bytes(),
        facts=facts((folder / "facts").read_text("utf-8").strip()),
    )


def broken(wrong: dict[str, Any]) -> Case:
    """The right case with the edits of a wrong one; every edit must find its text exactly once."""
    case = right(wrong["of"])
    files = {"summary.md": case.markdown.decode("utf-8"), "summary.jsonl": (case.rows or b"").decode("utf-8")}
    for edit in wrong["edits"]:
        name = edit.get("file", "summary.md")
        assert files[name].count(edit["find"]) == 1, (
            f"{edit['find']!r} stands {files[name].count(edit['find'])} times"
        )
        files[name] = files[name].replace(edit["find"], edit["put"])
    return replace(case, markdown=files["summary.md"].encode(), rows=files["summary.jsonl"].encode())


@pytest.mark.parametrize("name", RIGHT)
def test_no_false_alarm(name: str) -> None:
    result = right(name).check()
    assert not result.findings, [f"{f.file}:{f.line} {f.rule} {f.message}" for f in result.findings]


@pytest.mark.parametrize("name", WRONG)
def test_the_fault_is_found_where_it_is(name: str) -> None:
    wrong = yaml.safe_load((CORPUS / "wrong" / f"{name}.yaml").read_text("utf-8"))
    result = broken(wrong).check()
    found = {(finding.file, finding.line, finding.rule) for finding in result.findings}
    expected = {(e.get("file", "summary.md"), e["line"], str(e["rule"])) for e in wrong["expect"]}
    assert found == expected, [f"{f.file}:{f.line} {f.rule} {f.message}" for f in result.findings]
    assert all(finding.remedy for finding in result.findings)


def test_the_corpus_is_as_large_as_it_claims() -> None:
    assert len(RIGHT) >= 10
    assert len(WRONG) >= 30
