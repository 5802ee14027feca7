"""results.csv: columns, formats, one row a run, old files, many writers."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import grade, iso, plan, record, result
from posttrain.core.runs import Status
from posttrain.reports.results import (
    COLUMNS,
    ResultRow,
    driver_model,
    read_results,
    record_result,
    result_row,
)

ANCESTOR_HEADER = (
    "run_id,timestamp,task,agent,base_model,baseline,best_score,improvement,submissions,duration_s,"
    "success,workspace"
)
SEED_ROW = (
    "20260211T143000,2026-02-11 14:30:00,gsm8k,openhands,Qwen/Qwen2.5-1.5B,21.61,22.37,0.76,3,3600,True,"
    "workspace/gsm8k/20260211T143000"
)
LATER_ROW = (
    "20260212T090000,2026-02-12 09:00:00,gsm8k,rdagent,gpt-5.2,Qwen/Qwen2.5-1.5B,21.61,23.12,1.51,7,3600,"
    "True,workspace/gsm8k/20260212T090000"
)
GRADES = (grade(1, 50.0, at=60), grade(2, 68.0, at=120), grade(3, None, at=200))


def row(run_id: str = "r1", **changes: object) -> ResultRow:
    made = result_row(plan(run_id), record(run_id), GRADES, driver="unknown", workspace=Path("/lab/w"))
    return made.model_copy(update=changes)


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_columns_are_the_ancestors_and_then_ours() -> None:
    assert ",".join(COLUMNS) == (
        "run_id,timestamp,task,agent,driver_model,base_model,baseline,best_score,improvement,submissions,"
        "duration_s,success,workspace,status,protocol,split,n,ci_low,ci_high,test_score,val_baseline,val_best,"
        "isolation,network,seed,engine,gpus,version,ledger_head"
    )


def test_a_row_reads_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    path = tmp_path / "results.csv"
    record_result(path, row())
    assert cells(path) == [
        {
            "run_id": "r1",
            "timestamp": "2026-02-11 22:30:00",
            "task": "boolean",
            "agent": "recipe",
            "driver_model": "unknown",
            "base_model": "smollm2-135m",
            "baseline": "44.60",
            "best_score": "65.40",
            "improvement": "20.80",
            "submissions": "3",
            "duration_s": "480",
            "success": "True",
            "workspace": "/lab/w",
            "status": "completed",
            "protocol": "holdout",
            "split": "test",
            "n": "500",
            "ci_low": "16.30",
            "ci_high": "25.30",
            "test_score": "65.40",
            "val_baseline": "45.00",
            "val_best": "68.00",
            "isolation": "none",
            "network": "host",
            "seed": "7",
            "engine": "transformers",
            "gpus": "",
            "version": "0.1.0",
            "ledger_head": "h" * 64,
        }
    ]
    monkeypatch.undo()
    time.tzset()


def test_what_was_not_graded_is_empty(tmp_path: Path) -> None:
    failed = record(result=None, status=Status.NO_SUBMISSION, agent_exit=1)
    made = result_row(plan("r1"), failed, [grade(1, None, at=5)], driver="unknown", workspace=tmp_path / "w")
    record_result(tmp_path / "results.csv", made)
    (written,) = cells(tmp_path / "results.csv")
    for name in ("best_score", "improvement", "ci_low", "ci_high", "test_score", "val_best", "n", "split"):
        assert written[name] == "", name
    assert (written["success"], written["submissions"]) == ("False", "1")


def test_under_open_there_is_no_test_score_of_its_own() -> None:
    made = result_row(
        plan(protocol="open"),
        record(result=result(selection="best_test", overfit=None), val_baseline=None),
        [grade(1, 60.0, at=5, split="test")],
        driver="unknown",
        workspace=Path("/w"),
    )
    assert made.best_score == 65.4
    assert made.test_score is None
    assert made.val_best is None


@pytest.mark.parametrize(
    ("exit_code", "deadline", "graded", "success"),
    [(0, False, True, True), (1, False, True, False), (-15, True, True, True), (0, False, False, False)],
)
def test_success_needs_a_normal_end_and_a_grade(
    exit_code: int, deadline: bool, graded: bool, success: bool
) -> None:
    made = result_row(
        plan(),
        record(agent_exit=exit_code, stopped_at_deadline=deadline),
        [grade(1, 50.0 if graded else None, at=5)],
        driver="unknown",
        workspace=Path("/w"),
    )
    assert made.success is success


def test_a_second_row_of_the_same_run_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    for made in (row("r1"), row("r2", status="interrupted"), row("r3"), row("r2", status="completed")):
        record_result(path, made)
    assert [(line["run_id"], line["status"]) for line in cells(path)] == [
        ("r1", "completed"),
        ("r2", "completed"),
        ("r3", "completed"),
    ]


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = row(agent='odd, "name"\nwith a line end')
    record_result(tmp_path / "results.csv", made)
    assert read_results(tmp_path / "results.csv").rows == (made,)


def test_files_of_the_ancestor_are_read_with_and_without_the_driver_model(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("\n".join([ANCESTOR_HEADER, SEED_ROW, LATER_ROW]) + "\n", "utf-8")
    first, second = read_results(path).rows
    assert (first.driver_model, first.base_model, first.improvement) == ("", "Qwen/Qwen2.5-1.5B", 0.76)
    assert (second.driver_model, second.base_model, second.improvement) == (
        "gpt-5.2",
        "Qwen/Qwen2.5-1.5B",
        1.51,
    )
    assert first.success is True
    assert first.n is None


def test_a_file_of_the_ancestor_takes_our_rows(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(f"{ANCESTOR_HEADER}\n{SEED_ROW}", "utf-8")
    record_result(path, row("r1"))
    assert path.read_text("utf-8").startswith(",".join(COLUMNS) + "\n")
    assert [line.run_id for line in read_results(path).rows] == ["20260211T143000", "r1"]


def test_a_bad_line_hides_no_other_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    record_result(path, row("r1"))
    with path.open("a", encoding="utf-8") as file:
        file.write("cut off,in the mid")
    record_result(path, row("r2"))
    rows, faults = read_results(path)
    assert [line.run_id for line in rows] == ["r1", "r2"]
    assert len(faults) == 1
    assert "line 3: 2 cells for 29 columns" in faults[0]


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert read_results(tmp_path / "results.csv").rows == ()


WRITER = """
import sys
from pathlib import Path
from builders import plan, record
from posttrain.reports.results import record_result, result_row

path, writer = Path(sys.argv[1]), sys.argv[2]
for number in range(10):
    for run_id in (f"{writer}-{number}", f"shared-{number}"):
        record_result(path, result_row(plan(run_id), record(run_id), [], driver="x", workspace=Path("/w")))
"""


def test_many_writers_lose_no_row(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(writer)], env=environ)
        for writer in range(3)
    ]
    assert [process.wait(timeout=60) for process in writers] == [0, 0, 0]
    found = [line.run_id for line in read_results(path).rows]
    assert len(found) == 40
    assert len(set(found)) == 40


def test_the_driver_model_is_the_one_the_agent_was_given() -> None:
    assert driver_model({"LLM_MODEL": "a", "CHAT_MODEL": "b"}) == "a"
    assert driver_model({"LLM_MODEL": "", "CHAT_MODEL": "b", "OPENAI_MODEL": "c"}) == "b"
    assert driver_model({"PATH": "/bin"}) == "unknown"


def test_the_row_of_a_run_that_never_started_an_agent_can_be_written() -> None:
    made = result_row(
        plan(),
        record(
            status=Status.ERROR,
            agent_exit=None,
            result=None,
            val_baseline=None,
            test_baseline=None,
            started=iso(0),
        ),
        [],
        driver="unknown",
        workspace=Path("/w"),
    )
    assert made.baseline is None
    assert made.success is False


LINE = "{},2026-02-11 14:30:00,gsm8k,a,gpt,m,45.0,48.0,{},3,100,True,w\n"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('"r2,2026,never closed\n', "unexpected end of data"),
        ('r2,"x"y\n', "',' expected after '\"'"),
        ("x" * 200_000 + "\n", "field larger than field limit"),
    ],
)
def test_a_line_that_cannot_be_parsed_takes_no_other_with_it_and_is_kept(
    tmp_path: Path, broken: str, reason: str
) -> None:
    path = tmp_path / "results.csv"
    path.write_text(
        ",".join(COLUMNS[:13]) + "\n" + LINE.format("r1", 3) + broken + LINE.format("r3", 4), "utf-8"
    )
    rows, faults = read_results(path)
    assert [line.run_id for line in rows] == ["r1", "r3"]
    assert len(faults) == 1
    assert f"line 3: {reason}" in faults[0]
    record_result(path, row("r4"))
    assert broken in path.read_text("utf-8")
    assert [line.run_id for line in read_results(path).rows] == ["r1", "r3", "r4"]


@pytest.mark.parametrize("number", ["nan", "inf", "1e308", "-1e308", "9" * 400, "x"])
def test_what_no_score_can_be_is_no_number(tmp_path: Path, number: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(",".join(COLUMNS[:13]) + "\n" + LINE.format("r1", number), "utf-8")
    assert [line.improvement for line in read_results(path).rows] == [None]


def test_a_file_without_a_header_says_so(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(LINE.format("r1", 3), "utf-8")
    rows, faults = read_results(path)
    assert not rows
    assert "line 1: no header of a results file" in faults[0]
