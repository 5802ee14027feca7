"""Summaries, rows and scripts made to break their reader: no exception, no long wait."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.findings import SummaryCheck
from posttrain.reports.summaries.hyper import read_script
from posttrain.reports.summaries.script import Script
from posttrain.reports.summaries.workspace import workspace_facts

ZH = (Path(__file__).parent / "summaries" / "right" / "zh" / "summary.md").read_text("utf-8")
ROWS = (Path(__file__).parent / "summaries" / "right" / "zh" / "summary.jsonl").read_bytes()
SECTION = ZH.split("\n\n", 1)[1]
FACTS = workspace_facts(Path(__file__).parent / "summaries" / "facts" / "main", now=1_773_150_000.0)


def check(markdown: bytes | None, rows: bytes | None = ROWS, facts: Facts = FACTS) -> SummaryCheck:
    begun = time.process_time()
    result = check_summary(markdown, rows, facts)
    assert time.process_time() - begun < 60.0
    return result


def rules(result: SummaryCheck) -> set[str]:
    return {finding.rule for finding in result.findings}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400), st.binary(max_size=200))
def test_any_bytes_are_read(markdown: bytes, rows: bytes) -> None:
    assert not check(markdown, rows).ok


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_edit_of_a_right_summary_is_read(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(ZH)))
    length = data.draw(st.integers(0, 200))
    put = data.draw(st.text(max_size=40))
    check((ZH[:place] + put + ZH[place + length :]).encode("utf-8", "replace"))


@pytest.mark.parametrize(
    "markdown",
    [
        b"\x00" * 1000,
        b"\xff\xfe" + ZH.encode("utf-16-le"),
        ZH.encode("gb18030"),
        b"# \xe8\xbf\x90\xe8\xa1\x8c\xe6\x80\xbb\xe7\xbb\x93\n" + b"## Iteration 1 (" * 5000,
        (
            "# 运行总结\n\n## Iteration 1 (2026-03-10 12:15, 耗时 880s)\n\n- **状态**: " + "a." * 40_000
        ).encode(),
        ("# 运行总结\n\n## Iteration 1 (0001-01-01 00:00, 耗时 999999999999s)\n\n- **状态**: ✅").encode(),
        ("# 运行总结\n\n## Iteration 1 (9999-12-31 23:59, 耗时 0s)\n").encode(),
        ("# 运行总结\n\n## Iteration 99999999999999999999 (2026-13-45 99:99, 耗时 1e9s)\n").encode(),
        ("# 运行总结\n\n" + "- **" * 30_000).encode(),
        ("# 运行总结\n\n" + "`" * 100_000).encode(),
    ],
    ids=range(10),
)
def test_hostile_bytes_cost_findings_not_time(markdown: bytes) -> None:
    assert not check(markdown).ok


def test_a_huge_file_is_one_finding() -> None:
    result = check(b"x" * (17 << 20))
    assert [finding.rule for finding in result.findings if finding.file == "summary.md"] == ["10"]


def test_thousands_of_iterations_are_refused_in_time() -> None:
    sections = "".join(
        SECTION.split("## Iteration 2")[0].replace("Iteration 1", f"Iteration {n}") for n in range(1, 3000)
    )
    result = check(f"# 运行总结\n\n{sections}".encode())
    assert any("more than 1000 iterations" in finding.message for finding in result.findings)
    assert len(result.findings) <= 500


def test_a_forged_heading_in_an_open_block_does_not_hide_what_follows() -> None:
    text = ZH.replace("      return rewards\n  ```\n", "      return rewards\n")
    result = check(text.encode())
    assert result.iterations == 5
    assert rules(result) == {"7"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b'{"iteration": 1', "not a JSON object"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"iteration": 1e400}', "iteration"),
        (b'{"iteration": true}', "iteration"),
        (b"[" * 100_000, "not a JSON object"),
        (b'{"a": "' + b"x" * 200_000 + b'"}', "not a JSON object"),
        (b"\xff\xfe{}", "not a JSON object"),
        (b'{"iteration": ' + b"9" * 10_000 + b"}", "not a JSON object"),
    ],
    ids=range(8),
)
def test_rows_that_are_none_are_named(row: bytes, said: str) -> None:
    result = check(ZH.encode(), ROWS + row + b"\n")
    assert any(f.line == 6 and f.rule == "9" and said in f.message for f in result.findings), result.findings


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "x = " + "-" * 3000 + "1",
        "lr = 10 ** 10 ** 10\noptimizer = AdamW(p, lr=lr)",
        "a = b\nb = a\noptimizer = AdamW(p, lr=a)",
        "def f(lr): f(lr=lr)\nf(lr=1e-5)",
        "x = 'a' * 10 ** 9",
        "\0",
        "lr = " + "[" * 200 + "]" * 200,
        "a = a + a\n" * 200 + "AdamW(p, lr=a)\n" * 200,
        "def f(x): f(x)\n" * 8000,
        "\n".join(f"lr = {n}" for n in range(20_000)) + "\nAdamW(p, lr=lr)",
    ],
)
def test_no_script_breaks_its_reader(text: str) -> None:
    begun = time.process_time()
    read_script(Script("code/train.py", text))
    assert time.process_time() - begun < 30.0


def test_many_iterations_over_large_scripts_are_read_once() -> None:
    text = "\n".join(f"x{n} = {n}" for n in range(3_000)) + "\nAdamW(p, lr=1e-5)\n"
    facts = replace(FACTS, scripts=tuple(Script(f"code/part{n}.py", text) for n in range(8)))
    part = SECTION.split("## Iteration 2")[0]
    sections = "".join(part.replace("Iteration 1", f"Iteration {n}") for n in range(1, 400))
    assert not check(f"# 运行总结\n\n{sections}".encode(), facts=facts).ok


def test_aliases_of_yaml_do_not_multiply() -> None:
    bomb = "a: &a {x: 1, y: 2}\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}, *{chr(97 + n)}, *{chr(97 + n)}]\n"
        for n in range(12)
    )
    begun = time.process_time()
    read_script(Script("code/train.yaml", bomb))
    assert time.process_time() - begun < 30.0
