"""Rule 1: what stood in a report when something was handed in stands there still."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.core.paths import RunPaths
from posttrain.grading.witness import take_witness
from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.facts import Facts, Moment
from posttrain.reports.summaries.findings import Finding

CASE = Path(__file__).parent / "summaries" / "right" / "zh"
MARKDOWN, ROWS = (CASE / "summary.md").read_bytes(), (CASE / "summary.jsonl").read_bytes()
SECOND, THIRD = MARKDOWN.index(b"## Iteration 2"), MARKDOWN.index(b"## Iteration 3")


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Two submissions: when one iteration was written, and when two were."""
    paths = RunPaths(tmp_path)
    for folder in (paths.workspace.reports, paths.workspace.code):
        folder.mkdir(parents=True)
    lines = ROWS.splitlines(keepends=True)
    moments = []
    for number, (size, rows) in enumerate(((SECOND, lines[:1]), (THIRD, lines[:2])), start=1):
        (paths.workspace.reports / "summary.md").write_bytes(MARKDOWN[:size])
        (paths.workspace.reports / "summary.jsonl").write_bytes(b"".join(rows))
        moments.append(Moment(number=number, reports=take_witness(paths).reports))
    return Facts(handed_known=False, moments=moments)


def broken(markdown: bytes | None, rows: bytes | None, facts: Facts) -> list[Finding]:
    return [finding for finding in check_summary(markdown, rows, facts).findings if finding.rule == "1"]


def test_appending_breaks_nothing(facts: Facts) -> None:
    assert broken(MARKDOWN, ROWS, facts) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "submission"),
    [
        ("正则抽取", "正则匹配", 3, 1),
        ("延长训练，保持", "缩短训练，保持", 40, 2),
        ("# 运行总结\n", "# 运行总结 \n", 1, 1),
        ("\n## Iteration 2", "\n\n## Iteration 2", 40, 2),
    ],
)
def test_a_changed_byte_is_named_with_its_section_and_submission(
    facts: Facts, old: str, new: str, line: int, submission: int
) -> None:
    (found,) = broken(MARKDOWN.replace(old.encode(), new.encode(), 1), ROWS, facts)
    assert (found.file, found.line) == ("summary.md", line)
    assert f"submission {submission}" in found.message


def test_what_was_written_since_may_still_change(facts: Facts) -> None:
    assert broken(MARKDOWN.replace("确认评测噪声".encode(), "看看噪声".encode()), ROWS, facts) == []


def test_a_shorter_file_is_named(facts: Facts) -> None:
    (found,) = broken(MARKDOWN[: SECOND + 10], ROWS, facts)
    assert "submission 2" in found.message


def test_a_deleted_file_is_named(facts: Facts) -> None:
    found = broken(None, None, facts)
    assert [(finding.file, finding.line) for finding in found] == [("summary.md", 1), ("summary.jsonl", 1)]
    assert "is gone" in found[0].message


def test_a_changed_row_is_named_by_its_line(facts: Facts) -> None:
    (found,) = broken(MARKDOWN, ROWS.replace(b'"exit_code": 1', b'"exit_code": 2'), facts)
    assert (found.file, found.line) == ("summary.jsonl", 2)
