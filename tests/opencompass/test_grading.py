"""A checkpoint graded by OpenCompass, from the command to the score: only the tool is a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from posttrain.core.paths import LabPaths
from posttrain.engines.scripted import Script, write_scripted
from posttrain.testing.agents import write_toy_agent
from posttrain.testing.fake_opencompass import Fault, install_fake_opencompass
from posttrain.testing.tiny import tiny_model
from run_bench import Bench, checkpoint

TASK = "smith-sums"


@pytest.fixture
def bench(lab: LabPaths, tmp_path: Path) -> Bench:
    """A smith task whose config.yaml leaves the judging to OpenCompass, with Chinese and CRLF in its rows."""
    folder = tmp_path / "smith" / "sums"
    (folder / "data").mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "name: 加法\neval_mode: opencompass\nopencompass_dataset: "
        "opencompass.configs.datasets.gsm8k.gsm8k_gen_1d7fe4\n",
        "utf-8",
    )
    for split, first in (("train", 100), ("test", 10)):
        rows = [
            {"question": f"求和：\r\nHow much is {first + n} + {n}?", "answer": f"#### {first + 2 * n}"}
            for n in range(40)
        ]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "data" / f"{split}.jsonl").write_text(text, "utf-8")
    lab.agents.mkdir()
    return Bench(lab, tiny_model(tmp_path / "base"), {"SMITH_BENCH_DIR": str(folder.parent)})


def grade(bench: Bench, folder: Path, *options: str) -> dict[str, object]:
    done = bench.posttrain(
        *("grade", "--task", TASK, "--model-path", str(folder), "--engine", "scripted", "--json", *options)
    )
    assert done.stdout, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_folder_is_graded_item_by_item(bench: Bench, tmp_path: Path) -> None:
    install_fake_opencompass(bench.lab)
    write_scripted(tmp_path / "better", Script(accuracy=0.9, seed=1), like=bench.base)
    graded = grade(bench, tmp_path / "better", "--base", str(bench.base), "--show", "wrong", "40")
    assert graded["n"] == 40
    right = graded["accuracy_summary"]["correct"]  # type: ignore[index]
    assert 30 <= right < 40
    assert graded["score"] == pytest.approx(100 * right / 40)
    wrong = graded["wrong"]
    assert isinstance(wrong, list)
    assert len(wrong) == 40 - right
    assert all(each["rule"] == "opencompass" and each["texts"] for each in wrong)
    assert graded["details"]["rules"] == {"opencompass": 40}  # type: ignore[index]


FAULTS: dict[Fault, str] = {
    "dash": "left no predictions",
    "lost_item": "39 predictions for 40 items",
    "own_text": "no answer of the engine",
    "reordered": "is about another item",
    "crash": "OpenCompass ended with 1: Traceback: no such thing",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tool_that_goes_wrong_is_an_error_and_no_score(bench: Bench, fault: Fault) -> None:
    install_fake_opencompass(bench.lab, fault=fault)
    graded = grade(bench, bench.base)
    assert graded["score"] is None
    assert FAULTS[fault] in str(graded["error"])


def test_a_tool_that_hangs_is_stopped_at_the_limit(bench: Bench) -> None:
    install_fake_opencompass(bench.lab, fault="hang")
    graded = grade(bench, bench.base, "--grading-timeout", "3s")
    assert graded["score"] is None
    assert "longer than 3 s" in str(graded["error"])


def test_a_tool_that_asks_one_by_one_is_marked(bench: Bench) -> None:
    install_fake_opencompass(bench.lab, fault="one_by_one")
    graded = grade(bench, bench.base, "--limit", "2")
    assert "by arrival" in str(graded["details"])
    assert graded["n"] == 2


def test_without_judged_items_no_interval_is_made_up(bench: Bench) -> None:
    install_fake_opencompass(bench.lab, fault="unjudged")
    graded = grade(bench, bench.base)
    assert "judged no single items" in str(graded["details"])
    assert isinstance(graded["score"], float)


def test_a_tool_that_counts_in_shares_of_one_is_refused_before_a_run(bench: Bench) -> None:
    install_fake_opencompass(bench.lab, fault="share")
    done = bench.run("noop", "--limit", "8", task=TASK)
    assert done.returncode != 0
    assert "from 0 to 100" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "said"), [("crash", "engine worker ended"), ("busy", "device memory are free")]
)
def test_an_engine_that_fails_is_an_error_that_names_it(
    bench: Bench, tmp_path: Path, fault: Literal["crash", "busy"], said: str
) -> None:
    install_fake_opencompass(bench.lab)
    write_scripted(tmp_path / "failing", Script(fault=fault, at="generate"), like=bench.base)
    graded = grade(bench, tmp_path / "failing", "--base", str(bench.base))
    assert graded["score"] is None
    assert said in str(graded["error"])


def test_a_missing_tool_is_named_with_the_command_that_makes_it(bench: Bench) -> None:
    done = bench.run("noop", task=TASK)
    assert done.returncode == 2
    assert "posttrain env install opencompass" in done.stderr
    assert not bench.runs


def test_an_unknown_configuration_is_answered_with_similar_ones(bench: Bench) -> None:
    install_fake_opencompass(bench.lab)
    done = bench.run("noop", task="opencompass:gsm8k_gen_ffffff")
    assert done.returncode == 2
    assert "gsm8k_gen_1d7fe4" in done.stderr
    done = bench.run("noop", task="opencompass:hellaswag_gen")
    assert done.returncode == 2
    assert "evaluator_settings.files" in done.stderr


def test_a_run_is_judged_on_held_out_rows_and_improves_item_by_item(bench: Bench) -> None:
    install_fake_opencompass(bench.lab)
    steps = [*checkpoint("v1", 0.95, seed=3), {"do": "submit", "model_path": "output/v1"}]
    write_toy_agent(bench.agents, "toy", steps)
    done = bench.run("toy", "--limit", "40", task=TASK)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(bench.only.record.read_bytes())
    result = record["result"]
    assert result["score"]["n"] == 40
    assert result["improvement"]["value"] > 20
    assert result["improvement"]["method"] == "bonett-price"
    assert "self-check: gold 100.0, empty 0.0 on 4 items" in bench.only.run_log.read_text("utf-8")
    plan = json.loads(bench.only.plan.read_bytes())
    assert plan["libraries"]["opencompass"] == "fake"
    inside = "\n".join(
        path.read_text("utf-8", "replace") for path in bench.only.workspace.root.rglob("*.jsonl")
    )
    assert "How much is 12 + 2?" not in inside, "test rows stay with the lab"


def test_without_isolation_the_tool_comes_by_tcp(bench: Bench) -> None:
    install_fake_opencompass(bench.lab)
    done = bench.run("noop", "--sandbox", "none", "--limit", "4", task=TASK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(bench.only.record.read_bytes())["result"]["improvement"]["value"] == 0.0


def test_the_check_of_a_task_goes_through_the_tool(bench: Bench) -> None:
    install_fake_opencompass(bench.lab)
    done = bench.posttrain("check", "task", TASK, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["name"]: one["detail"] for one in json.loads(done.stdout)["checks"]}
    assert found[f"answers {TASK}"].startswith("gold 100.0, empty 0.0")
    assert found["noop"].startswith("improves by +0.0")
