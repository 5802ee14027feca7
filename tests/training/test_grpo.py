"""GRPO on TRL with a tiny model: prompts as graded, time kept, bad gradients kept out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the extra 'train'")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.core.engine import RenderedPrompt
from posttrain.testing.tiny import tiny_model
from posttrain.training.budget import Budget
from posttrain.training.grpo import GrpoSettings, Watch, prompt_rows, subset, train_epoch
from posttrain.training.rewards import random_reward


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def watch(clock: Clock, budget_s: float = 100.0, reserve_s: float = 10.0) -> tuple[Watch, list[str]]:
    told: list[str] = []
    return Watch(Budget(budget_s, clock=clock), reserve_s=reserve_s, log=told.append), told


def test_two_epochs_follow_each_other_and_move_the_weights(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    observer, told = watch(Clock())
    rows = [{"prompt": f"{n}", "gold": "x"} for n in range(8)]
    start = base
    for epoch in (1, 2):
        start = train_epoch(
            start,
            tmp_path / f"checkpoint-epoch{epoch}",
            rows=rows,
            reward=random_reward(epoch),
            settings=GrpoSettings(max_steps=1, max_completion_length=4, learning_rate=1e-3),
            stop_token_ids=(256,),
            seed=epoch,
            scratch=tmp_path / "trl",
            watch=observer,
        )
    weights = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model.norm.weight
        for folder in (base, tmp_path / "checkpoint-epoch1", tmp_path / "checkpoint-epoch2")
    ]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert sum("reward" in line for line in told) == 2
    assert not any(path.suffix in {".pt", ".bin", ".pth"} for path in start.iterdir())


def test_an_epoch_ends_when_the_next_step_would_run_out_of_time() -> None:
    clock = Clock()
    observer, told = watch(clock)
    stopped = []
    for step in range(1, 5):
        control, state = SimpleNamespace(should_training_stop=False), SimpleNamespace(global_step=step)
        observer.on_step_begin(None, state, control)
        clock.now += 25
        observer.on_step_end(None, state, control)
        stopped.append(control.should_training_stop)
    assert stopped == [False, False, True, True]
    assert told[0] == "the time is up after 3 steps"


@pytest.mark.parametrize(("value", "kept"), [(1.0, True), (float("nan"), False), (float("inf"), False)])
def test_a_gradient_that_is_no_number_never_reaches_the_weights(value: float, kept: bool) -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.weight.grad = torch.full((2, 2), value)
    model.bias.grad = torch.ones(2)
    observer, _ = watch(Clock())
    observer.on_pre_optimizer_step(None, None, None, model=model)
    assert (model.weight.grad is not None) is kept
    assert (model.bias.grad is not None) is kept
    assert observer.skipped == (0 if kept else 1)


def test_prompts_are_refused_where_trl_would_ask_something_else(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model(tmp_path / "base"))
    ids = tuple(tokenizer("ab")["input_ids"])
    rows = [{"answer": "1"}]
    made = prompt_rows(
        rows, [RenderedPrompt(text="ab", token_ids=ids)], tokenizer, gold=lambda row: row["answer"]
    )
    assert made == [{"prompt": "ab", "gold": "1"}]
    with pytest.raises(ValueError, match="the grader"):
        prompt_rows(rows, [RenderedPrompt(text="ab", token_ids=(1,))], tokenizer, gold=str)


def test_a_subset_is_a_share_of_the_rows_by_seed() -> None:
    rows = [{"n": n} for n in range(100)]
    assert len(subset(rows, ratio=0.1, seed=0)) == 10
    assert subset(rows, ratio=0.1, seed=0) == subset(rows, ratio=0.1, seed=0)
    assert subset(rows, ratio=0.1, seed=0) != subset(rows, ratio=0.1, seed=1)
    assert len(subset(rows[:5], ratio=0.1, seed=0)) == 5
