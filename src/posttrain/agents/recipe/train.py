"""Supervised fine-tuning on data/train.jsonl with the pinned prompt, fitted to the time that is left.

Hands in after a third of the time and at the end; begins again more cautiously if the first grade
shows a collapse. What is tuned stands in config.yaml.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# before torch starts: threads that spin would slow down the grader on the same cores many times
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers.utils import logging as transformers_logging

from posttrain.core.errors import PosttrainError
from posttrain.infra.files import read_jsonl
from posttrain.prompting import render_example
from posttrain.training.budget import Budget, HandInCost
from posttrain.training.curve import Curve
from posttrain.training.examples import batches
from posttrain.training.models import (
    ModelTrainer,
    batch_size_for,
    learning_rate_for,
    read_base,
)
from posttrain.training.server import GradingServer
from posttrain.training.session import Session, SessionSettings
from posttrain.training.sft import SftSettings

WORKSPACE = Path(os.environ["WORKSPACE"])
STEPS = 40  # with fewer steps than this, smaller batches teach more
BEGAN = time.monotonic()


def log(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


def setting(name: str, default: str) -> str:
    return os.environ.get(name) or default


def main() -> int:
    seed = int(setting("SEED", "0"))
    torch.manual_seed(seed)
    transformers_logging.disable_progress_bar()
    server = GradingServer(os.environ["GRADING_SERVER_URL"])
    budget = Budget(server.remaining_s())
    rows = list(read_jsonl(Path(os.environ["DATA_PATH"]) / "train.jsonl"))
    base = read_base(Path(os.environ["MODEL_PATH"]))
    cost = HandInCost(base.checkpoint_bytes)
    asked = setting("LEARNING_RATE", "auto")
    settings = SftSettings(
        learning_rate=learning_rate_for(base.parameters) if asked == "auto" else float(asked),
        max_tokens=16384 if base.device == "cuda" else 4096,
    )
    log(
        f"{len(rows)} rows, {base.parameters / 1e6:.0f}M parameters on {base.device}, "
        f"{budget.remaining():.0f} s left, learning rate {settings.learning_rate:g}"
    )

    def stream(size: int):
        return batches(
            rows,
            render_example,
            size=size,
            seed=seed,
            max_length=min(int(setting("MAX_LENGTH", "2048")), base.max_length),
        )

    first = ModelTrainer(base, settings)
    most = int(setting("BATCH_SIZE", "32"))
    seconds, tokens = first.row_cost(next(stream(most)))
    size = batch_size_for(
        budget.remaining() - cost.reserve(),
        seconds_per_row=seconds,
        tokens_per_row=tokens,
        most=most,
        steps=STEPS,
    )
    log(f"{seconds * 1000:.0f} ms and {tokens:.0f} tokens a row, {size} rows a step")
    prepared = [first]

    def start(sft: SftSettings) -> ModelTrainer:
        return prepared.pop() if prepared else ModelTrainer(base, sft)

    session = Session(
        start=start,
        batches=stream(size),
        examples=int(float(setting("EPOCHS", "3")) * len(rows)),
        budget=budget,
        cost=cost,
        server=server,
        output=Path(os.environ["OUTPUT_DIR"]),
        settings=SessionSettings(early=float(setting("EARLY", "0.35"))),
        log=log,
        curve=Curve(WORKSPACE / "code" / "curve.jsonl", log=log).add,
    )
    accepted = session.run(settings)
    for number in accepted:
        grade = server.wait_for(number, until_s=3.0)
        if grade is not None:
            log(
                f"submission {number}: {grade['status']}, score {grade.get('score')}, "
                f"improvement {grade.get('improvement')}"
            )
    return 0 if accepted else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (PosttrainError, OSError, ValueError) as error:
        log(f"{type(error).__name__}: {error}")
        sys.exit(1)
