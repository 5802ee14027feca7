"""The small agents that ship do what they promise, started as the lab starts them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posttrain.agents.registry import AgentRegistry
from posttrain.core.engine import PinnedPrompt, PromptSettings
from posttrain.core.specs import GenerationSettings
from posttrain.testing.agents import copy_ancestor_agent, write_toy_agent
from posttrain.testing.tiny import tiny_model

HOST = {"PATH": "/usr/local/bin:/usr/bin:/bin", "OPENAI_API_KEY": "sk-1"}


def answers(bench: Any) -> list[dict[str, Any]]:
    lines = (bench.workspace / "code" / "answers.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_toy_agent_follows_its_steps(bench: Any, tmp_path: Path) -> None:
    (bench.model / "weights.bin").write_text("w")
    steps = [
        {"do": "say", "text": "hello"},
        {"do": "copy_base", "to": "output/v1"},
        {"do": "write", "to": "output/v1/answers.json", "data": {"a": 1}},
        {"do": "submit", "model_path": "output/v1", "final": True},
        {"do": "get", "path": "/time"},
        {"do": "leave", "code": 3},
        {"do": "say", "text": "never"},
    ]
    write_toy_agent(tmp_path, "toy", steps)
    ended = bench.run(AgentRegistry([tmp_path]).load("toy"))
    assert ended.returncode == 3
    assert "hello" in ended.stdout
    assert "never" not in ended.stdout
    assert (bench.workspace / "output/v1/weights.bin").read_text() == "w"
    assert bench.server.submissions == [{"model_path": "output/v1", "final": True}]
    assert [answer["http"] for answer in answers(bench)] == [200, 200]


def test_the_toy_agent_submits_from_several_threads(bench: Any, tmp_path: Path) -> None:
    threads = [[{"do": "submit", "model_path": f"output/v{n}"}] for n in range(4)]
    write_toy_agent(tmp_path, "toy", [{"do": "parallel", "threads": threads}])
    assert bench.run(AgentRegistry([tmp_path]).load("toy")).returncode == 0
    assert sorted(body["model_path"] for body in bench.server.submissions) == [
        f"output/v{n}" for n in range(4)
    ]


def test_a_crash_of_the_toy_agent_is_an_exit_code(bench: Any, tmp_path: Path) -> None:
    write_toy_agent(tmp_path, "toy", [{"do": "crash"}])
    assert bench.run(AgentRegistry([tmp_path]).load("toy")).returncode == 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_a_folder_in_the_ancestors_format_runs_unchanged(bench: Any, tmp_path: Path) -> None:
    (bench.workspace / "data/train.jsonl").write_text("{}\n{}\n")
    (bench.model / "model.safetensors").write_text("w")
    copy_ancestor_agent(tmp_path)
    agent = AgentRegistry([tmp_path]).load("ancestor").model_copy(update={"pass_env": ("OPENAI_API_KEY",)})
    ended = bench.run(agent, host=HOST)
    assert ended.returncode == 0
    assert "task=boolean model=tiny key=set" in ended.stdout
    assert "saw 2 rows" in ended.stdout
    assert bench.server.submissions == [{"model_path": str(bench.workspace / "output/v1")}]
    assert bench.server.agents[0].startswith("curl/")
    assert json.loads((bench.workspace / "code/answer.json").read_text())["score"] == 60.0


def test_noop_hands_in_the_base_and_nothing_else(bench: Any) -> None:
    pytest.importorskip("posttrain.cli.main")
    (bench.model / "config.json").write_text("{}")
    (bench.model / "config.json").chmod(0o444)
    bench.model.chmod(0o555)
    ended = bench.run(AgentRegistry().load("noop"))
    assert ended.returncode == 0, ended.stdout
    assert (bench.workspace / "output/base/config.json").read_text() == "{}"
    assert [body["model_path"] for body in bench.server.submissions] == [str(bench.workspace / "output/base")]


def prepare(bench: Any, *, rows: int) -> None:
    """A tiny model, rows that can be learnt, and the pinned prompt."""
    tiny_model(bench.model)
    made = [{"question": f"{n} is", "answer": str(n % 2 == 0)} for n in range(rows)]
    (bench.workspace / "data/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    pinned = PinnedPrompt(
        prompt=PromptSettings(style="chat", template="{question}", answer_template="{answer}"),
        generation=GenerationSettings(max_new_tokens=8),
        stop_token_ids=(256,),
    )
    (bench.workspace / "prompt").mkdir()
    (bench.workspace / "prompt/settings.json").write_text(pinned.model_dump_json())


def test_the_recipe_trains_hands_in_twice_and_ends_before_the_deadline(bench: Any) -> None:
    pytest.importorskip("torch", reason="needs the extra 'train'")
    prepare(bench, rows=64)
    agent = AgentRegistry().load("recipe")
    fast = agent.model_copy(update={"env_vars": {**agent.env_vars, "EPOCHS": "2", "BATCH_SIZE": "8"}})
    ended = bench.run(fast)
    assert ended.returncode == 0, ended.stdout
    assert [Path(body["model_path"]).name for body in bench.server.submissions] == ["v1", "v2"]
    assert not any(body["wait"] for body in bench.server.submissions)
    assert (bench.workspace / "output/v2/model.safetensors").is_file()
    curve = [json.loads(line) for line in (bench.workspace / "code/curve.jsonl").read_text().splitlines()]
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert "submission 2: graded" in ended.stdout


def test_random_reward_runs_the_example_agents_script_with_another_reward(bench: Any) -> None:
    pytest.importorskip("trl", reason="needs the extra 'train'")
    prepare(bench, rows=32)
    agent = AgentRegistry().load("random_reward")
    fast = agent.model_copy(update={"env_vars": {**agent.env_vars, "MAX_STEPS": "1"}})
    ended = bench.run(fast)
    assert ended.returncode == 0, ended.stdout
    assert [Path(body["model_path"]).name for body in bench.server.submissions] == ["checkpoint-epoch1"]
    assert (bench.workspace / "output/checkpoint-epoch1/model.safetensors").is_file()
    assert "step 1: reward" in ended.stdout


def test_the_sweep_compares_knobs_and_trains_with_the_best(bench: Any) -> None:
    pytest.importorskip("torch", reason="needs the extra 'train'")
    pytest.importorskip("optuna", reason="needs the extra 'sweep'")
    prepare(bench, rows=64)
    bench.server.improvements = [1.0, 2.0, -5.0]
    agent = AgentRegistry().load("sweep")
    settings = {"EPOCHS": "1", "BATCH_SIZE": "8", "MOST_TRIALS": "2"}
    ended = bench.run(agent.model_copy(update={"env_vars": {**agent.env_vars, **settings}}))
    assert ended.returncode == 0, ended.stdout
    assert "trial 0: +2.0 on validation" in ended.stdout
    assert "trial 1, half-way: -5.0 on validation, not worth finishing" in ended.stdout
    assert "last training, the best of 2 trials, +2.0: learning rate x1" in ended.stdout
    assert {path.name for path in (bench.workspace / "output").iterdir()} == {"v4", "v5"}
    assert (bench.workspace / "code/sweep.jsonl").is_file()


def test_the_sweep_without_optuna_says_so_in_a_line(bench: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra 'train'")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/optuna.py").write_text("raise ModuleNotFoundError('optuna')\n")
    agent = AgentRegistry().load("sweep")
    without = {**agent.env_vars, "PYTHONPATH": str(tmp_path / "gone")}
    ended = bench.run(agent.model_copy(update={"env_vars": without}))
    assert ended.returncode == 1
    (line,) = ended.stdout.splitlines()
    assert line.endswith("the agent sweep needs optuna: pip install 'posttrain[sweep]'")


@pytest.mark.parametrize("name", ["noop", "recipe", "random_reward", "sweep"])
def test_controls_call_themselves_so(name: str) -> None:
    assert AgentRegistry().load(name).control
