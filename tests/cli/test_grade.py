"""`grade` and `baseline` on the scripted engine."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths

BOOLEAN = ("--task", "boolean", "--engine", "scripted")


def test_a_folder_is_graded_with_the_ancestors_fields(cli, scripted_models: Path) -> None:
    shown = cli("grade", *BOOLEAN, "--model-path", str(scripted_models / "base"), "--json")
    assert shown.returncode == 0, shown.stderr
    graded = json.loads(shown.stdout)
    assert list(graded)[:5] == ["benchmark", "model_path", "score", "accuracy_summary", "eval_type"]
    assert graded["benchmark"] == "boolean"
    assert graded["model_path"] == str(scripted_models / "base")
    assert graded["n"] == 500
    assert 40 < graded["score"] < 60
    assert graded["accuracy_summary"]["total"] == 500
    assert graded["accuracy_summary"]["correct"] == pytest.approx(graded["score"] * 5)
    assert "boolean test: 500 of 500" in shown.stderr


def test_weights_alone_are_graded_on_their_base(cli, scripted_models: Path) -> None:
    better, base = str(scripted_models / "better"), str(scripted_models / "base")
    shown = cli("grade", *BOOLEAN, "--model-path", better, "--base", base, "--limit", "100", "--json")
    graded = json.loads(shown.stdout)
    assert graded["n"] == 100
    assert graded["score"] > 75


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user's workers run as that user")
def test_weights_that_are_closed_to_the_grader_are_named(cli, scripted_models: Path, tmp_path: Path) -> None:
    shutil.copytree(scripted_models / "better", tmp_path / "closed")
    weights = next((tmp_path / "closed").iterdir())
    weights.chmod(0o600)
    shown = cli(
        "grade", *BOOLEAN, "--model-path", str(tmp_path / "closed"), "--base", str(scripted_models / "base")
    )
    assert shown.returncode == 2
    (line,) = [line for line in shown.stderr.splitlines() if line.startswith("posttrain:")]
    assert f"{weights}: closed to other users" in line
    assert "chmod" in line


def test_all_takes_validation_and_test_together(cli, scripted_models: Path) -> None:
    folder = str(scripted_models / "base")
    shown = cli("grade", *BOOLEAN, "--model-path", folder, "--split", "all", "--limit", "60", "--json")
    assert json.loads(shown.stdout)["n"] == 120


def test_wrong_answers_are_shown_with_question_and_gold(cli, scripted_models: Path) -> None:
    folder = str(scripted_models / "base")
    shown = cli("grade", *BOOLEAN, "--model-path", folder, "--limit", "50", "--show", "wrong", "2")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("question: ") == 2
    assert shown.stdout.count("  answer: ") == 2
    assert shown.stdout.count("said: ") == 2


def test_what_cannot_be_graded_has_an_error_and_no_score(cli, scripted_models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    base = str(scripted_models / "base")
    shown = cli("grade", *BOOLEAN, "--model-path", str(folder), "--base", base, "--json")
    assert shown.returncode == 1
    failed = json.loads(shown.stdout)
    assert failed["score"] is None
    assert failed["error"]
    assert "not graded" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--task", "nope", "--model-path", "{base}"), "no task 'nope'"),
        (("--task", "../x", "--model-path", "{base}"), "../x"),
        (("--task", "boolean", "--model-path", "/no/such/folder"), "not a folder"),
        (("--task", "boolean", "--model-path", "{better}", "--engine", "scripted"), "--base"),
        (("--task", "boolean", "--model-path", "{base}", "--show", "right", "1"), "--show wrong N"),
        (("--task", "boolean", "--model-path", "{base}", "--grading-timeout", "soon"), "--grading-timeout"),
        (("--task", "boolean", "--model-path", "{base}", "--limit", "0"), "--limit"),
    ],
)
def test_wrong_use_is_one_line_and_leaves_nothing(
    cli, lab: LabPaths, scripted_models: Path, arguments: tuple[str, ...], says: str
) -> None:
    lab.home.rmdir()
    names = {"base": scripted_models / "base", "better": scripted_models / "better"}
    shown = cli("grade", *(argument.format(**names) for argument in arguments))
    assert shown.returncode == 2
    assert says in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert not lab.home.exists()


def test_a_baseline_is_measured_once(cli, scripted_models: Path) -> None:
    arguments = ("baseline", *BOOLEAN, "--model", str(scripted_models / "base"), "--limit", "50", "--json")
    first, second = json.loads(cli(*arguments).stdout), json.loads(cli(*arguments).stdout)
    assert [one["split"] for one in first["baselines"]] == ["val", "test"]
    assert [one["cached"] for one in first["baselines"]] == [False, False]
    assert [one["cached"] for one in second["baselines"]] == [True, True]
    assert [one["score"] for one in first["baselines"]] == [one["score"] for one in second["baselines"]]


def test_the_baseline_of_open_is_the_test_split(cli, scripted_models: Path) -> None:
    model = str(scripted_models / "base")
    shown = cli("baseline", *BOOLEAN, "--model", model, "--protocol", "open", "--limit", "50", "--json")
    (only,) = json.loads(shown.stdout)["baselines"]
    assert (only["split"], only["n"]) == ("test", 50)


def test_a_baseline_of_an_unknown_model_leaves_nothing(cli, lab: LabPaths) -> None:
    lab.home.rmdir()
    shown = cli("baseline", *BOOLEAN, "--model", "no-such-model")
    assert shown.returncode == 2
    assert shown.stderr.count("\n") == 1
    assert not lab.home.exists()
