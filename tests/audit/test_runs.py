"""Real runs of agents that know too much: the audit at the end, its effect on selection, and the command."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from posttrain.core.paths import LabPaths
from posttrain.testing.agents import write_toy_agent
from posttrain.testing.tiny import fine_tuned, tiny_model
from run_bench import Bench, checkpoint

MANIFEST = """\
title: Stories
evaluator: numeric
splits: {val: {from: train, size: 60}, test: {from: test}}
generation: {max_new_tokens: 16}
"""
DATA = """\
import json, random
from pathlib import Path

PEOPLE = "Ann Bob Cid Dora Eve Finn Gus Hana Ivo June".split()
THINGS = "apples stamps marbles ribbons shells buttons pencils tickets".split()
DEEDS = "buys sells loses finds hides paints counts trades mends sorts".split()
PLACES = "market harbour library garden station bakery museum castle".split()


def story(number):
    source = random.Random(number)
    lines = [
        f"{source.choice(PEOPLE)} {source.choice(DEEDS)} {source.randint(2, 99)} {source.choice(THINGS)} "
        f"near the {source.choice(PLACES)} before noon"
        for _ in range(5)
    ]
    return {"question": ". ".join(lines) + ". How many are left?", "answer": str(number % 50)}


def prepare(target, *, source):
    for name, numbers in (("train", range(400)), ("test", range(1000, 1100))):
        text = "".join(json.dumps(story(number)) + "\\n" for number in numbers)
        (Path(target) / f"{name}.jsonl").write_text(text)
"""


@pytest.fixture
def bench(lab: LabPaths) -> Bench:
    lab.agents.mkdir()
    folder = lab.benchmarks / "stories"
    folder.mkdir(parents=True)
    (folder / "benchmark.yaml").write_text(MANIFEST)
    (folder / "description.md").write_text("Stories with numbers.\n")
    (folder / "data.py").write_text(DATA)
    return Bench(lab, tiny_model(lab.home.parent / "base"))


def stories(numbers: range) -> str:
    scope: dict[str, Any] = {}
    exec(DATA, scope)
    return "".join(json.dumps(scope["story"](number)) + "\n" for number in numbers)


def run(bench: Bench, data: str, *versions: tuple[str, float]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"do": "write", "to": "code/data.jsonl", "text": data}]
    for number, (name, accuracy) in enumerate(versions):
        steps += [*checkpoint(name, accuracy, seed=number), {"do": "submit", "model_path": f"output/{name}"}]
    write_toy_agent(bench.agents, "toy", steps)
    done = bench.run("toy", "--limit", "100", task="stories")
    assert done.returncode == 0, done.stderr
    return json.loads(bench.only.record.read_bytes())


TWO = (("best", 0.95), ("last", 0.6))


def test_an_honest_agent_is_audited_and_not_flagged(bench: Bench) -> None:
    record = run(bench, "its own notes\n" * 50, *TWO)
    assert (record["result"]["submission_id"], record["result"]["selection"]) == (1, "best_val")
    assert not any("contaminated" in mark for mark in record["marks"])
    report = json.loads(bench.only.audit.read_bytes())
    assert report["files"] > 0
    assert report["matches"] == []
    done = bench.posttrain("audit", bench.only.run_id)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flags     none" in done.stdout
    assert bench.posttrain("verify", bench.only.run_id).returncode == 0


def test_rows_of_test_mark_the_result_and_change_no_score(bench: Bench) -> None:
    record = run(bench, stories(range(1000, 1010)), *TWO)
    assert "flag: test_contaminated" in record["marks"]
    assert (record["result"]["submission_id"], record["result"]["selection"]) == (1, "best_val")
    done = bench.posttrain("audit", bench.only.run_id, "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert told["flags"] == ["test_contaminated"]
    assert {match["file"] for match in told["matches"]} == {"code/data.jsonl"}
    assert bench.posttrain("verify", bench.only.run_id).returncode == 0


def test_rows_of_validation_change_the_choice_and_not_the_mark(bench: Bench) -> None:
    record = run(bench, stories(range(400)), *TWO)
    assert (record["result"]["submission_id"], record["result"]["selection"]) == (2, "last")
    assert not any("contaminated" in mark for mark in record["marks"])
    assert bench.posttrain("audit", bench.only.run_id).returncode == 1


def test_forbidden_places_are_named_with_file_and_line(bench: Bench) -> None:
    text = f"import x\nopen('{bench.lab.home}/datasets/stories/private/test.jsonl')\n"
    run(bench, text, ("one", 0.9))
    report = json.loads(bench.only.audit.read_bytes())
    (mention,) = report["mentions"]
    assert (mention["file"], mention["line"]) == ("code/data.jsonl", 2)
    assert "private" in mention["what"]


def test_a_siblings_weights_are_rejected_in_a_run(bench: Bench) -> None:
    pytest.importorskip("numpy")
    sibling = fine_tuned(bench.base, bench.lab.home.parent / "instruct", seed=4, scale=0.02)
    bench.lab.models.mkdir(parents=True)
    bench.lab.siblings.write_text(f"{bench.base}:\n- {{name: instruct, folder: {sibling}}}\n")
    steps = []
    for name, source in (("copied", sibling), ("own", bench.base)):
        target = f"output/{name}"
        steps += [{"do": "copy_base", "to": target}]
        if name == "copied":
            raw = b64encode((source / "model.safetensors").read_bytes()).decode()
            steps += [{"do": "write", "to": f"{target}/model.safetensors", "base64": raw}]
        steps += [{"do": "submit", "model_path": target}]
    write_toy_agent(bench.agents, "toy", steps)
    bench.run("toy", task="stories")
    rows = json.loads(bench.only.workspace.scores.read_bytes())
    assert rows[0]["status"] == "rejected"
    assert "is(instruct)" in rows[0]["error"]
    assert json.loads(bench.only.plan.read_bytes())["siblings"] == ["instruct"]
