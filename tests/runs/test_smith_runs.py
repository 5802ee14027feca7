"""A smith folder made by hand, odd in every way, from discovery to the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from run_bench import Bench

EVAL = """
def evaluate(question, model_answer, reference_answer, 难度=None, **kwargs):
    if question["n"] == 0:
        print("啊" * 1_000_000)
    if question["n"] == 1:
        raise RuntimeError("坏行")
    if question["n"] == 2:
        return 1.7
    return float(model_answer.strip() == reference_answer)
"""


@pytest.fixture
def smith(bench: Bench, tmp_path: Path) -> Bench:
    folder = tmp_path / "smith" / "数数"
    (folder / "data").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: 数数\ndescription: 数一数有多少。\n未知: 1\n", "utf-8")
    (folder / "eval.py").write_text(EVAL, "utf-8")
    for split, numbers in (("train", range(100, 200)), ("test", range(40))):
        rows = [
            {"question": {"问": "多少？", "n": n}, "answer": str(n), "难度": "易", "来源": None}
            for n in numbers
        ]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "data" / f"{split}.jsonl").write_text(text, "utf-8")
    bench.environment["SMITH_BENCH_DIR"] = str(folder.parent)
    return bench


def test_a_smith_folder_is_found_and_checked_and_its_oddities_are_told(smith: Bench) -> None:
    listed = {row["task"]: row for row in json.loads(smith.posttrain("list", "tasks", "--json").stdout)}
    assert listed["smith-数数"]["broken"] is None
    done = smith.posttrain("check", "task", "smith-数数", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["name"]: one["detail"] for one in json.loads(done.stdout)["checks"]}
    assert "visible 90, val 10, test 40" in found["data"]
    assert "only 10 validation items" in found["data"]
    assert "not 100 and 0" in found["answers smith-数数"], "two rows cannot be answered right"
    assert found["noop"].startswith("improves by +0.0")


def test_a_smith_folder_is_graded_on_held_out_rows_and_each_oddity_is_reported(smith: Bench) -> None:
    done = smith.run("noop", "--limit", "40", task="smith-数数")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(smith.only.record.read_bytes())["result"]
    assert (result["score"]["n"], result["improvement"]["value"]) == (40, 0.0)
    told = " / ".join(result["baseline"]["warnings"])
    assert "1 of 40 answers count as wrong: evaluate raised: RuntimeError: 坏行" in told
    assert "1 of 40 answers count as wrong: evaluate returned 1.7, no number in [0, 1]" in told
    assert "eval.py printed 1000001 characters" in told
    workspace = smith.only.workspace
    (shown,) = (smith.lab.dataset("smith-数数") / "visible").glob("*/train.jsonl")
    seen = {json.loads(line)["question"]["n"] for line in shown.open("rb")}
    assert min(seen) >= 100, "no row of test.jsonl is with the agent"
    assert workspace.description.read_text("utf-8") == "# 数数\n\n数一数有多少。\n"
    assert '{"问": "多少？", "n": ' in (workspace.prompt / "samples.jsonl").read_text("utf-8").replace(
        '\\"', '"'
    )
