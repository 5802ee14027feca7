"""`posttrain run` from the command line to the record: real processes, a scripted engine at the end."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from posttrain.core.paths import RunPaths
from posttrain.testing.agents import copy_ancestor_agent, write_toy_agent
from run_bench import Bench, answers, checkpoint

ANCESTOR_FIELDS = {
    "submission_id",
    "timestamp",
    "model_path",
    "score",
    "baseline_score",
    "improvement",
    "elapsed_seconds",
    "best",
    "total_submissions",
}


def record(paths: RunPaths) -> dict:
    return json.loads(paths.record.read_bytes())


def test_noop_improves_by_exactly_nothing(bench: Bench) -> None:
    done = bench.run("noop")
    assert done.returncode == 0, done.stderr
    result = record(bench.only)["result"]
    assert result["improvement"]["value"] == 0.0
    assert result["score"]["value"] == result["baseline"]["value"]
    assert result["flags"] == ["copy_of_base"]


def test_an_ancestor_agent_folder_runs_unchanged(bench: Bench) -> None:
    copy_ancestor_agent(bench.agents)
    bench.environment["OPENAI_API_KEY"] = "sk-secret-of-the-operator"
    done = bench.run("ancestor", "--pass-env", "OPENAI_API_KEY")
    assert done.returncode == 0, done.stderr
    paths = bench.only
    answer = json.loads((paths.workspace.code / "answer.json").read_bytes())
    assert set(answer) >= ANCESTOR_FIELDS
    assert answer["best"]["submission_id"] == 1
    assert "key=set" in paths.agent_log.read_text("utf-8")
    assert json.loads(paths.plan.read_bytes())["env_names"] == ["OPENAI_API_KEY"]


def test_sixteen_submissions_from_eight_threads_are_sixteen_rows(bench: Bench) -> None:
    made = [step for n in range(8) for step in checkpoint(f"v{n}", 0.5 + n / 20, seed=n)]
    broken = [
        {"do": "copy_base", "to": "output/broken"},
        {"do": "write", "to": "output/broken/model.safetensors", "text": "no weights"},
    ]
    asked = [[f"output/v{n}", "output/broken" if n % 4 == 3 else f"output/v{(n + 1) % 8}"] for n in range(8)]
    threads = [[{"do": "submit", "model_path": path, "retries": 60} for path in pair] for pair in asked]
    hang_up = [{"do": "submit_and_hang_up", "model_path": "output/v0"}, {"do": "sleep", "seconds": 1}]
    steps = [*made, *broken, {"do": "parallel", "threads": threads}, *hang_up]
    write_toy_agent(bench.agents, "crowd", steps)
    done = bench.run("crowd", "--timeout", "120")
    assert done.returncode == 0, done.stderr
    paths = bench.only
    rows = json.loads(paths.workspace.scores.read_bytes())
    assert [row["submission_id"] for row in rows] == list(range(1, 18)), "16 and the one that hung up"
    told = [answer["http"] for answer in answers(paths) if answer["http"] != 429]
    assert sorted(told) == [200] * 14 + [422] * 2
    graded = [json.loads(path.read_bytes()) for path in paths.grading.glob("*/grade.json")]
    first = [grade for grade in graded if grade["status"] == "graded" and grade["same_as"] is None]
    assert len(first) == len({grade["digest"] for grade in first}) == 8, "each content graded once"
    assert [row["status"] for row in rows].count("unloadable") == 2
    assert all("score" not in row for row in rows if row["status"] == "unloadable")


def test_holdout_tests_the_best_of_validation_once(bench: Bench) -> None:
    steps = [
        *checkpoint("a", 0.6, seed=1),
        {"do": "submit", "model_path": "output/a"},
        *checkpoint("b", 0.95, seed=2),
        {"do": "submit", "model_path": "output/b"},
        *checkpoint("c", 0.5, seed=3),
        {"do": "submit", "model_path": "output/c"},
    ]
    write_toy_agent(bench.agents, "three", steps)
    done = bench.run("three", "--limit", "100")
    assert done.returncode == 0, done.stderr
    paths = bench.only
    told = record(paths)
    assert (told["result"]["submission_id"], told["result"]["selection"]) == (2, "best_val")
    assert told["result"]["split"] == "test"
    assert told["result"]["overfit"] is not None
    kinds = [json.loads(line)["kind"] for line in paths.ledger.read_text("utf-8").splitlines()]
    assert kinds.count("tested") == 1
    assert "limited" in told["marks"]


def test_open_counts_the_best_test_score_and_says_so(bench: Bench) -> None:
    steps = [
        *checkpoint("a", 0.6, seed=1),
        {"do": "submit", "model_path": "output/a"},
        *checkpoint("b", 0.9, seed=2),
        {"do": "submit", "model_path": "output/b"},
    ]
    write_toy_agent(bench.agents, "two", steps)
    done = bench.run("two", "--protocol", "open", "--limit", "100")
    assert done.returncode == 0, done.stderr
    told = record(bench.only)
    assert told["result"]["improvement"]["method"] == "best-of-k"
    assert {row["split"] for row in (answer["answer"] for answer in answers(bench.only))} == {"test"}
    assert any(mark.startswith("open") for mark in told["marks"])
    (row,) = csv.DictReader(bench.lab.results_csv.open())
    assert (row["protocol"], row["test_score"], row["best_score"]) == (
        "open",
        "",
        f"{told['result']['score']['value']:.2f}",
    )


def test_an_agent_that_hands_in_nothing_gets_no_score(bench: Bench) -> None:
    write_toy_agent(bench.agents, "idle", [{"do": "say", "text": "nothing"}])
    done = bench.run("idle")
    assert done.returncode == 1
    told = record(bench.only)
    assert (told["status"], told["result"]) == ("no_submission", None)
    (row,) = csv.DictReader(bench.lab.results_csv.open())
    assert (row["best_score"], row["improvement"], row["success"]) == ("", "", "False")


def test_a_crash_after_a_graded_submission_still_has_a_result(bench: Bench) -> None:
    steps = [*checkpoint("a", 0.9), {"do": "submit", "model_path": "output/a"}, {"do": "leave", "code": 3}]
    write_toy_agent(bench.agents, "crash", steps)
    done = bench.run("crash")
    assert done.returncode == 0
    told = record(bench.only)
    assert (told["status"], told["agent_exit"]) == ("agent_failed", 3)
    assert told["result"]["submission_id"] == 1


def test_what_was_accepted_before_the_deadline_is_graded_to_the_end(bench: Bench) -> None:
    steps = [
        *checkpoint("slow", 0.9, delay_s=4),
        {"do": "submit", "model_path": "output/slow", "wait": False},
        {"do": "sleep", "seconds": 3600},
    ]
    write_toy_agent(bench.agents, "late", steps)
    done = bench.run("late", "--timeout", "3")
    assert done.returncode == 0, done.stderr
    told = record(bench.only)
    assert (told["status"], told["stopped_at_deadline"]) == ("completed", True)
    assert told["verdicts"]["graded"] == 1


def test_the_paths_of_the_logs_and_the_server_come_first(bench: Bench) -> None:
    done = bench.run("noop")
    first = done.stdout.splitlines()[:5]
    paths = bench.only
    assert [line.strip() for line in first[1:4]] == [
        str(path) for path in (paths.run_log, paths.agent_log, paths.server_log)
    ]
    assert "http://127.0.0.1:" in first[4]


def test_json_is_one_document_on_stdout(bench: Bench) -> None:
    done = bench.run("noop", "--json")
    assert json.loads(done.stdout)["run_id"] == bench.only.run_id


def test_the_workspace_holds_what_an_agent_needs_and_no_hidden_row(bench: Bench) -> None:
    assert bench.run("noop").returncode == 0
    workspace = bench.only.workspace
    names = {path.name for path in workspace.root.iterdir()}
    assert names >= {"code", "output", "reports", "models", "data", "prompt", "description.md"}
    assert names >= {"instructions.md", "RULES.md", "run_meta.json", "scores.json", "run.log", "agent.log"}
    hidden = {row["question"] for split in ("val", "test") for row in _private_rows(bench.lab.home, split)}
    text = "\n".join(
        path.read_text("utf-8", "replace")
        for path in workspace.root.rglob("*")
        if path.is_file() and path.suffix in {".md", ".json", ".jsonl", ".log", ".txt"}
    )
    assert hidden
    assert not [question for question in hidden if f'"{question}"' in text]


def _private_rows(home: Path, split: str) -> list[dict]:
    (path,) = (home / "datasets" / "boolean" / "private").glob(f"*/{split}.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
