"""`posttrain new` and `posttrain check`: scaffolds prove themselves, and a fault is told where it lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.testing.agents import write_toy_agent
from run_bench import Bench


def checks(bench: Bench, *arguments: str) -> tuple[int, dict[str, dict]]:
    done = bench.posttrain("check", *arguments, "--json")
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)["checks"]}


def new_task(bench: Bench, *options: str) -> Path:
    made = bench.posttrain("new", "task", "days", *options)
    assert made.returncode == 0, made.stderr
    return bench.lab.benchmarks / "days"


@pytest.mark.parametrize("evaluator", ["choice", "per_sample", "own"])
def test_a_new_task_passes_its_own_check_unchanged(bench: Bench, evaluator: str) -> None:
    folder = new_task(bench, "--evaluator", evaluator)
    code, found = checks(bench, "task", "days")
    assert code == 0, found
    assert list(found) == ["manifest", "data", "splits", "answers days", "answers days:2shot", "noop"]
    assert f"evaluator {evaluator}" in found["manifest"]["detail"]
    assert "gold 100.0, empty 0.0" in found["answers days"]["detail"]
    assert found["noop"]["detail"].startswith("improves by +0.0")
    assert not any(bench.lab.runs.glob("*/*")), "a check leaves no run"
    assert not any(bench.lab.models.glob("local/stand-in*")), "nor a model"
    assert (folder / "eval.py").is_file() == (evaluator != "choice")


def test_a_new_agent_trains_and_passes_its_own_check_unchanged(bench: Bench) -> None:
    pytest.importorskip("transformers")
    assert bench.posttrain("new", "agent", "mine").returncode == 0
    code, found = checks(bench, "agent", "mine:quick", "--model", str(bench.base), "--timeout", "100s")
    assert code == 0, found
    assert "1 handed in, 1 graded, exit code 0" in found["submissions"]["detail"]


def test_a_name_that_is_taken_or_none_is_wrong_use(bench: Bench) -> None:
    new_task(bench)
    again = bench.posttrain("new", "task", "days")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    assert bench.posttrain("new", "agent", "../up").returncode == 2


@pytest.mark.parametrize("kind", ["task", "agent"])
def test_a_shipped_name_is_taken_since_the_shipped_one_would_be_used(bench: Bench, kind: str) -> None:
    name = {"task": "boolean", "agent": "recipe"}[kind]
    for place in ((), ("--in", str(bench.lab.home / "elsewhere"))):
        made = bench.posttrain("new", kind, name, *place)
        assert (made.returncode, f"{name} exists already" in made.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("task", "unknown"),
        ("task", "boolean:unknown"),
        ("agent", "unknown"),
        ("agent", "noop:unknown"),
        ("agent", "noop", "--task", "unknown"),
    ],
)
def test_a_name_of_nothing_is_wrong_use_and_no_fault(bench: Bench, arguments: tuple[str, ...]) -> None:
    done = bench.posttrain("check", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'unknown'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_row_in_two_splits_is_a_fault(bench: Bench) -> None:
    folder = new_task(bench)
    code = (folder / "data.py").read_text("utf-8")
    # a row that reads the same as a test row, white space aside, is dropped by the harness and told
    (folder / "data.py").write_text(code.replace("if number % 5]", "]"), "utf-8")
    status, found = checks(bench, "task", "days")
    assert status == 0
    assert "rows left out: they repeat" in found["data"]["detail"]


def test_rows_without_an_answer_are_a_fault_that_shows_one(bench: Bench) -> None:
    folder = new_task(bench)
    code = (folder / "data.py").read_text("utf-8")
    (folder / "data.py").write_text(code.replace('"answer": DAYS', '"anser": DAYS'), "utf-8")
    status, found = checks(bench, "task", "days")
    assert status == 1
    assert "a row has no field 'answer': {" in found["answers days"]["faults"][0]


def test_gold_that_the_evaluator_does_not_take_is_a_fault_that_names_an_item(bench: Bench) -> None:
    folder = new_task(bench)
    manifest = folder / "benchmark.yaml"
    manifest.write_text(manifest.read_text("utf-8").replace("Monday, ", "", 1), "utf-8")
    status, found = checks(bench, "task", "days")
    assert status == 1
    assert "Monday" in found["answers days"]["faults"][0]


def test_a_broken_manifest_ends_the_check_with_file_and_field(bench: Bench) -> None:
    (new_task(bench) / "benchmark.yaml").write_text("title: x\nevaluator: choice\ncolour: red\n", "utf-8")
    status, found = checks(bench, "task", "days")
    assert (status, list(found)) == (1, ["manifest"])
    assert "days/benchmark.yaml: colour" in found["manifest"]["faults"][0]


def test_an_agent_that_hands_in_nothing_is_told_with_its_last_words(bench: Bench) -> None:
    write_toy_agent(bench.agents, "idle", [{"do": "print", "text": "I give up"}, {"do": "exit", "code": 3}])
    status, found = checks(bench, "agent", "idle", "--model", str(bench.base), "--timeout", "30s")
    assert status == 1
    said = " ".join(found["submissions"]["faults"])
    assert "nothing was handed in" in said


def test_a_submission_that_is_no_checkpoint_is_told_with_its_remedy(bench: Bench) -> None:
    write_toy_agent(
        bench.agents,
        "broken",
        [
            {"do": "copy_base", "to": "output/v1"},
            {"do": "write", "to": "output/v1/model.safetensors", "text": "no weights"},
            {"do": "submit", "model_path": "output/v1"},
        ],
    )
    status, found = checks(bench, "agent", "broken", "--model", str(bench.base), "--timeout", "30s")
    assert status == 1
    assert "submission 1 is unloadable" in found["submissions"]["faults"][0]
