"""Tasks with an evaluator of their own, in real runs: their code asks the checkpoint, or loads it itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.testing.agents import write_toy_agent
from run_bench import Bench

DATA = """
import json

def prepare(target, *, source):
    rows = [{"question": f"Say {n}.", "answer": str(n)} for n in range(60)]
    (target / "train.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
"""
ASKING = """
def evaluate(items, engine, settings):
    return [o.text == i.fields["answer"] for i, o in zip(items, engine.ask(items))]
"""
LOADING = """
import json
from pathlib import Path

class Evaluator:
    def run_eval(self, model_path, workspace_path):
        model = Path(model_path)
        config = json.loads((model / "config.json").read_text())
        rows = (Path(workspace_path) / "data/test.jsonl").read_text().splitlines()
        size = (model / "model.safetensors").stat().st_size
        return {"score": 10.0 if size < 1_000_000 else 30.0,
                "accuracy_summary": {"rows": len(rows), "vocabulary": config["vocab_size"]}}
"""
SAY_SEVEN = [
    {"do": "copy_base", "to": "output/v1"},
    {"do": "write", "to": "output/v1/scripted.json", "data": {"otherwise": "7"}},
    {"do": "submit", "model_path": "output/v1"},
]


def task(bench: Bench, name: str, code: str) -> Path:
    folder = bench.lab.benchmarks / name
    folder.mkdir(parents=True)
    (folder / "benchmark.yaml").write_text(f"title: {name}\nevaluator: own\n", "utf-8")
    (folder / "data.py").write_text(DATA, "utf-8")
    (folder / "eval.py").write_text(code, "utf-8")
    return folder


def result(bench: Bench) -> dict:
    return json.loads(bench.only.record.read_bytes())


def test_a_task_s_own_code_asks_the_checkpoint_through_pipes(bench: Bench) -> None:
    task(bench, "say", ASKING)
    write_toy_agent(bench.agents, "seven", SAY_SEVEN)
    done = bench.run("seven", task="say")
    assert done.returncode == 0, done.stdout + done.stderr
    made = result(bench)
    assert made["self_check"]["gold"] == 100.0
    assert made["result"]["baseline"]["value"] == 0.0
    assert made["verdicts"]["graded"] == 1
    assert bench.posttrain("verify", bench.only.run_id).returncode == 0


def test_noop_improves_a_task_of_its_own_by_exactly_nothing(bench: Bench) -> None:
    task(bench, "say", ASKING)
    assert bench.run("noop", task="say").returncode == 0
    assert result(bench)["result"]["improvement"]["value"] == 0.0


def test_the_ancestor_s_class_loads_the_base_s_config_with_the_submission_s_tensors(bench: Bench) -> None:
    task(bench, "load", LOADING)
    write_toy_agent(bench.agents, "seven", SAY_SEVEN)
    done = bench.run("seven", task="load")
    assert done.returncode == 0, done.stdout + done.stderr
    score = result(bench)["result"]["score"]
    assert score["value"] == pytest.approx(10.0)
    assert score["secondary"]["rows"] == score["n"] == 12
    assert not list(bench.only.grading.glob("*/model")), "the assembled checkpoint is gone"
    assert bench.posttrain("verify", bench.only.run_id).returncode == 0


def test_an_evaluator_that_fails_is_the_lab_s_error_and_not_a_zero(bench: Bench) -> None:
    task(bench, "load", LOADING.replace('"score": 10.0 if size < 1_000_000 else 30.0,', '"error": "no GPU",'))
    done = bench.run("noop", task="load")
    assert done.returncode == 1
    assert "run_eval: no GPU" in done.stdout + done.stderr
    assert result(bench)["result"] is None
