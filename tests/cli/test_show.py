"""`show`: one run on one page, finished or not."""

from __future__ import annotations

import json

import pytest

from builders import grade, plan, record, result, score
from posttrain.cli.main import execute
from posttrain.core.grading import Grade
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunRecord
from posttrain.grading.ledger import Ledger
from posttrain.infra.files import write_json

GRADES = (
    grade(1, 50.0, at=60, flags=("copy_of_base",)),
    grade(2, 68.0, at=120, final=True, note="lr 2e-4\nlonger"),
    grade(3, None, at=200, error="no weights \x1b[2J"),
    grade(4, 68.0, at=230, same_as=2),
)


@pytest.fixture
def home(lab: LabPaths, monkeypatch: pytest.MonkeyPatch) -> LabPaths:
    monkeypatch.setenv("POSTTRAIN_HOME", str(lab.home))
    monkeypatch.chdir(lab.home)
    return lab


def write_run(lab: LabPaths, happened: RunRecord | None, *grades: Grade) -> RunPaths:
    made = plan("r1")
    paths = lab.run(made.request.task, made.run_id)
    paths.root.mkdir(parents=True)
    write_json(paths.request, made.request)
    write_json(paths.plan, made)
    with Ledger(paths.ledger, torn=paths.torn) as ledger:
        for one in grades:
            ledger.append("graded", one)
    if happened is not None:
        write_json(paths.record, happened)
    return paths


def test_the_page_answers_the_question_of_the_run(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    better = result(
        score=score(65.4, constant_guess=54.0, secondary={"strict_format": 98.0}),
        baseline=score(44.6, secondary={"strict_format": 0.4}),
    )
    paths = write_run(home, record("r1", result=better), *GRADES)
    assert execute(["show", "r1"]) == 0
    page = capsys.readouterr().out
    assert "recipe on boolean with smollm2-135m, budget 10m, holdout protocol, seed 7" in page
    assert "65.4 [61.1, 69.4] on 500 test items" in page
    assert "+20.8 [+16.3, +25.3] points, p = 0.001" in page
    assert "54.0 for the best constant answer" in page
    assert "0.4 before, 98.0 after" in page
    assert "submission 2, best on validation (68.0; over-fit +2.2 [-2.3, +6.7])" in page
    assert "isolation: none" in page
    assert str(paths.root) in page


def test_every_submission_has_one_line_without_control_characters(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(home, record("r1"), *GRADES)
    execute(["show", "r1"])
    lines = capsys.readouterr().out.splitlines()
    table = lines[-4:]
    assert [line.split()[:3] for line in table] == [
        ["1", "1m", "graded"],
        ["2", "2m", "graded"],
        ["3", "3m20s", "unloadable"],
        ["4", "3m50s", "graded"],
    ]
    assert table[0].endswith("copy_of_base")
    assert table[1].endswith("final; lr 2e-4 longer")
    assert "\x1b" not in table[2]
    assert "no weights" in table[2]
    assert "same content as 2" in table[3]


def test_a_run_without_a_result_says_so(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home, record("r1", result=None, reason="the agent gave up"))
    assert execute(["show", "r1"]) == 0
    page = capsys.readouterr().out
    assert "not scored" in page
    assert "the agent gave up" in page


def test_a_run_in_progress_can_be_looked_at(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home, None, GRADES[0])
    assert execute(["show", "r1"]) == 0
    assert "r1, running" in capsys.readouterr().out


def test_json_holds_the_whole_run(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home, record("r1"), *GRADES)
    assert execute(["show", "r1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert RunRecord.model_validate(shown["record"]) == record("r1")
    assert [Grade.model_validate(item) for item in shown["submissions"]] == list(GRADES)
    assert shown["status"] == "completed"


def test_a_damaged_file_is_named(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_run(home, record("r1"))
    paths.record.write_text("{}")
    assert execute(["show", "r1"]) == 1
    assert "record.json" in capsys.readouterr().err
