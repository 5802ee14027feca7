# ruff: noqa: ARG002 - a callback is called with names that it does not need
"""GRPO on TRL, an epoch at a time: each begins with the checkpoint that the one before has saved."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from posttrain.core.engine import RenderedPrompt
from posttrain.training.budget import Budget
from posttrain.training.rewards import RewardFunction
from posttrain.training.sft import save_checkpoint

Row = Mapping[str, Any]


@dataclass(frozen=True)
class GrpoSettings:
    """Hyper-parameters of AutoRL-Bench's example agent."""

    max_steps: int = 20
    per_device_train_batch_size: int = 2
    gradient_accumulation_steps: int = 4
    learning_rate: float = 1e-5
    max_completion_length: int = 256
    num_generations: int = 4


class Watch(TrainerCallback):
    """Ends an epoch in time, and lets no gradient that is no number into the weights."""

    def __init__(self, budget: Budget, *, reserve_s: float, log: Callable[[str], None]) -> None:
        self._budget = budget
        self._reserve_s = reserve_s
        self._log = log
        self._slowest = 0.0
        self._began = budget.now()
        self.skipped = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self._began = self._budget.now()
        return control

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> Any:
        parameters = [value for value in model.parameters() if value.grad is not None]
        if not all(bool(torch.isfinite(value.grad).all()) for value in parameters):
            self.skipped += 1
            for value in parameters:
                value.grad = None  # an optimiser leaves alone what has no gradient
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self._slowest = max(self._slowest, self._budget.now() - self._began)
        if self._budget.remaining() < self._reserve_s + self._slowest:
            self._log(f"the time is up after {state.global_step} steps")
            control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> Any:
        shown = ("reward", "reward_std", "loss", "grad_norm", "completions/mean_length")
        told = ", ".join(f"{name} {float(logs[name]):.4g}" for name in shown if name in (logs or {}))
        if told:
            self._log(f"step {state.global_step}: {told}")
        return control


def train_epoch(
    start: Path,
    target: Path,
    *,
    rows: Sequence[Row],
    reward: RewardFunction,
    settings: GrpoSettings,
    stop_token_ids: Sequence[int],
    seed: int,
    scratch: Path,
    watch: Watch,
) -> Path:
    """Train the model at `start` on `rows` and save a complete checkpoint at `target`.

    Weights are fp32 under bf16 arithmetic, and are saved so: in bf16 most of the small steps of
    this learning rate would be rounded away between epochs.
    """
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(start, local_files_only=True)
    model.generation_config.eos_token_id = list(stop_token_ids)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list([dict(row) for row in rows]),
        args=_arguments(settings, seed=seed, scratch=scratch),
        callbacks=[watch],
    )
    trainer.train()
    return save_checkpoint(trainer.model, tokenizer, target, dtype=torch.float32)


def prompt_rows(
    rows: Sequence[Row], rendered: Sequence[RenderedPrompt], tokenizer: Any, *, gold: Callable[[Row], str]
) -> list[dict[str, str]]:
    """Rows for TRL: the pinned prompt as text, and the gold answer.

    TRL tokenises text by itself, which may put a second start token before one that the template
    wrote. ValueError if what it would make of a prompt is not what the grader asks.
    """
    made = []
    for row, prompt in zip(rows, rendered, strict=True):
        text = prompt.text
        ids = tuple(tokenizer(text)["input_ids"])
        if ids != prompt.token_ids and tokenizer.bos_token:
            text = text.removeprefix(tokenizer.bos_token)
            ids = tuple(tokenizer(text)["input_ids"])
        if ids != prompt.token_ids:
            raise ValueError(f"TRL would ask {list(ids)[:8]}…, the grader {list(prompt.token_ids)[:8]}…")
        made.append({"prompt": text, "gold": gold(row)})
    return made


def subset(rows: Sequence[Row], *, ratio: float, seed: int) -> list[Row]:
    """That share of the rows, at least eight if there are as many, in random order."""
    count = min(len(rows), max(8, round(len(rows) * ratio)))
    return random.Random(seed).sample(list(rows), count)  # noqa: S311 - a sample, not a secret


def _arguments(settings: GrpoSettings, *, seed: int, scratch: Path) -> Any:
    cuda = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(scratch),
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.per_device_train_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        learning_rate=settings.learning_rate,
        max_completion_length=settings.max_completion_length,
        num_generations=settings.num_generations,
        bf16=True,
        use_cpu=not cuda,
        dataloader_pin_memory=cuda,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
