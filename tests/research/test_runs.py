"""Whole runs of `rdagent` over real HTTP, with the grading server, the sandbox and a played driver model."""

from __future__ import annotations

import json
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest

from posttrain.core.runs import RunRecord
from posttrain.research.__main__ import main
from posttrain.research.places import Places
from research.conftest import Played
from research.kit import FIVE, Turn, journal, play, program
from run_bench import Bench


def test_five_iterations_of_every_kind_end_in_a_tested_submission(bench: Bench, played: Played) -> None:
    played(play(FIVE))
    bench.environment["LOOP_N"] = "5"
    ended = bench.run("rdagent", "--limit", "100")
    paths = bench.only
    log = paths.agent_log.read_text("utf-8")
    nodes = journal(paths)
    assert [(node.kind, node.parent) for node in nodes] == [
        ("draft", None), ("draft", None), ("debug", 2), ("debug", 3), ("draft", None),
    ], log  # fmt: skip
    assert [node.failure and node.failure.fault for node in nodes] == [
        None, "crash", "diverged", "answer", None,
    ]  # fmt: skip
    assert [(node.decision.kept, node.decision.by) for node in nodes] == [
        (True, "numbers"), (False, "failure"), (False, "failure"), (False, "failure"), (False, "numbers"),
    ]  # fmt: skip
    assert ended.returncode == 0
    record = RunRecord.model_validate_json(paths.record.read_bytes())
    assert record.result is not None
    assert record.result.submission_id == 1
    summary = (paths.reports / "summary.md").read_text("utf-8")
    assert summary.count("## Iteration ") == 5
    account = json.loads(Places(paths.workspace).summary.read_text("utf-8"))
    assert account["usage"]["calls"] == 15
    assert account["usage"]["cost"] > 0
    everything = [path for path in Places(paths.workspace).root.rglob("*") if path.is_file()]
    assert not any(b"sk-played-key" in path.read_bytes() for path in everything)
    checked = bench.posttrain("report", "check", paths.run_id)
    assert checked.returncode == 0, checked.stdout + checked.stderr + summary
    shown = bench.posttrain("show", paths.run_id, "--journal")
    assert shown.stdout.startswith("#1 draft ★: teach the words")
    assert "5 iterations, 2 graded, 1 kept; driver model: 15 answers" in shown.stdout
    told = json.loads(bench.posttrain("show", paths.run_id, "--journal", "--json").stdout)
    assert [node["number"] for node in told["nodes"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"CHAT_MODEL": ""}, "CHAT_MODEL is not set"),
        ({"LOOP_N": "many"}, "LOOP_N: 'many' is not a whole number"),
        ({"STEP_N": "4"}, "STEP_N: '4' is not a whole number of at least 5"),
        ({"TRAIN_SHARE": "2"}, "TRAIN_SHARE"),
        ({"WORKSPACE": ""}, "WORKSPACE not set"),
        ({"CHAT_PROMPT_CHARS": "10"}, "CHAT_PROMPT_CHARS"),
    ],
)
def test_a_wrong_setting_is_one_line(
    changed: dict[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("WORKSPACE", "MODEL_PATH", "DATA_PATH", "OUTPUT_DIR", "GRADING_SERVER_URL")
    environ = dict.fromkeys(names, "/nowhere") | {"CHAT_MODEL": "m", "OPENAI_API_BASE": "http://127.0.0.1:9"}
    assert main(environ | changed) == 2
    assert told in capsys.readouterr().out


def test_a_log_that_nothing_can_be_written_to_ends_nothing() -> None:
    with suppress(OSError), Path("/dev/full").open("w", encoding="utf-8") as full, redirect_stdout(full):
        code = main({})
    assert code == 2


def test_a_refused_key_ends_the_loop_with_a_line(bench: Bench, played: Played) -> None:
    played(play(FIVE))
    bench.environment["OPENAI_API_KEY"] = "sk-another-key"
    ended = bench.run("rdagent")
    assert ended.returncode == 1
    log = bench.only.agent_log.read_text("utf-8")
    assert "HTTP 401 from the model's server" in log
    assert "0 iterations" in log


def test_an_output_that_knows_only_english_costs_no_answer(bench: Bench, played: Played) -> None:
    played(play([Turn("多训练一会儿 …", program(0.9), keep=True)]))
    bench.environment |= {"LOOP_N": "1", "PYTHONIOENCODING": "ascii"}
    bench.run("rdagent", "--pass-env", "PYTHONIOENCODING")
    (node,) = journal(bench.only)
    assert node.grade is not None
    assert "多训练一会儿" in bench.only.agent_log.read_text("utf-8")


@pytest.mark.slow
def test_a_silent_driver_model_does_not_outlast_the_budget(bench: Bench, played: Played) -> None:
    played([{"when": "Iteration", "text": "never", "delay_s": 300}])
    bench.run("rdagent", "--timeout", "28")
    record = RunRecord.model_validate_json(bench.only.record.read_bytes())
    assert record.duration_s < 30
    assert "no answer in the" in bench.only.agent_log.read_text("utf-8")


@pytest.mark.slow
def test_a_model_that_never_answers_well_is_given_up(bench: Bench, played: Played) -> None:
    played([{"when": "terat", "text": "I would rather talk."}])
    ended = bench.run("rdagent", "--timeout", "40")
    assert ended.returncode == 1
    nodes = journal(bench.only)
    assert len(nodes) == 12
    assert {node.failure and node.failure.fault for node in nodes} == {"answer"}
    assert "12 iterations in a row gave no code" in bench.only.agent_log.read_text("utf-8")
    checked = bench.posttrain("report", "check", bench.only.run_id)
    assert checked.returncode == 0, checked.stdout


def test_without_a_driver_model_nothing_begins(bench: Bench) -> None:
    bench.environment["CHAT_MODEL"] = ""
    ended = bench.run("rdagent")
    assert ended.returncode == 2
    assert "CHAT_MODEL is not set" in ended.stderr
    assert bench.runs == []


def test_it_ends_when_no_more_may_be_handed_in(bench: Bench, played: Played) -> None:
    played(play([Turn(f"idea {n}", program(0.6 + n / 100)) for n in range(1, 5)]))
    bench.run("rdagent", "--max-submissions", "1")
    nodes = journal(bench.only)
    assert [node.failure and node.failure.fault for node in nodes] == [None, "cap"]
    assert "no more submissions are accepted" in bench.only.agent_log.read_text("utf-8")
