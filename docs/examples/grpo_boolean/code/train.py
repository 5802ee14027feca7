"""GRPO with TRL on Boolean expressions: the experiment of the example blueprint.

Rows come from the task's own generator; those for training and for evaluation lie in different parts of
its space. Evaluations are printed in the names that blueprints know, so that the report finds them.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import yaml
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from posttrain.benchmarks.boolean.data import candidates
from posttrain.benchmarks.splits import PUBLIC_KEY, bucket

QUESTION = "Evaluate the result of a Boolean expression. Answer with one word, True or False.\n\n{question}"
VALIDATION, VISIBLE = {1}, set(range(2, 10))


def rows(seed: int, *, buckets: set[int], count: int) -> list[dict[str, str]]:
    """Different rows from one part of the space."""
    found = {
        text: row for text, row in islice(candidates(seed), 20 * count) if bucket(text, PUBLIC_KEY) in buckets
    }
    return list(found.values())[:count]


def first_word(text: str) -> str:
    match = re.search(r"\w+", text)
    return match.group() if match else ""


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 if the first word is the answer, else 0."""
    return [float(first_word(said) == right) for said, right in zip(completions, answer, strict=True)]


class Evaluate(TrainerCallback):
    """Greedy answers to tasks that are not trained on, before the first step and every few."""

    def __init__(self, tokenizer: Any, tasks: list[dict[str, str]], *, every: int, length: int) -> None:
        self._tokenizer = tokenizer
        self._tasks = tasks
        self._every = every
        self._length = length

    def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self._evaluate(model, 0)

    def on_step_end(self, _args: Any, state: Any, _control: Any, *, model: Any, **_: Any) -> None:
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            self._evaluate(model, state.global_step)

    @torch.no_grad()
    def _evaluate(self, model: Any, step: int) -> None:
        was_training = model.training
        model.eval()
        said: list[str] = []
        for start in range(0, len(self._tasks), 50):
            prompts = [task["prompt"] for task in self._tasks[start : start + 50]]
            batch = self._tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
            with torch.autocast("cpu", torch.bfloat16):
                made = model.generate(**batch, max_new_tokens=self._length, do_sample=False)
            said += self._tokenizer.batch_decode(
                made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
        model.train(was_training)
        answers = [task["answer"] for task in self._tasks]
        print(report(step, reward(said, answers)), flush=True)  # noqa: T201 - the log is the result


def report(step: int, rewards: list[float]) -> dict[str, float]:
    """One evaluation in the names of the blueprint format."""
    mean = sum(rewards) / len(rewards)
    right = int(sum(rewards))
    return {
        "global_steps": step,
        "pass_n": 1,
        "total_tasks": len(rewards),
        "num_all_success_tasks": right,
        "num_pass_n_tasks(pass@1)": right,
        "task_pass_rate@1": mean,
        "mean_reward": mean,
        "std_reward": math.sqrt(sum((value - mean) ** 2 for value in rewards) / len(rewards)),
    }


def main(config: dict[str, Any]) -> None:
    torch.manual_seed(config["seed"])
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    model = AutoModelForCausalLM.from_pretrained(config["model"], dtype=torch.float32)

    def asked(row: dict[str, str]) -> dict[str, str]:
        turn = {"role": "user", "content": QUESTION.format(**row)}
        text = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
        return {"prompt": text, "answer": row["answer"]}

    training = rows(config["seed"] + 1, buckets=VISIBLE, count=config["train_rows"])
    tasks = rows(config["seed"] + 2, buckets=VALIDATION, count=config["eval_tasks"])
    arguments = GRPOConfig(
        output_dir=config.get("output", "checkpoints"),
        max_steps=config["max_steps"],
        per_device_train_batch_size=config["per_device_train_batch_size"],
        gradient_accumulation_steps=config["gradient_accumulation_steps"],
        num_generations=config["num_generations"],
        max_completion_length=config["max_completion_length"],
        learning_rate=float(config["learning_rate"]),
        top_k=config["top_k"],
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=config["seed"],
    )
    watch = Evaluate(
        tokenizer,
        [asked(row) for row in tasks],
        every=config["eval_every"],
        length=config["max_completion_length"],
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list([asked(row) for row in training]),
        args=arguments,
        callbacks=[watch],
    )
    trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf", type=Path, required=True)
    main(yaml.safe_load(parser.parse_args().conf.read_text("utf-8")))
