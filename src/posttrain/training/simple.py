"""One call for scripts that want to train and nothing else: `fine_tune(rows)`.

Base model, data, pinned prompt, checkpoint folder, curve and time come from the environment of the script
unless given: MODEL_PATH, DATA_PATH, CHECKPOINT_DIR (else OUTPUT_DIR/v1), CURVE_FILE, TRAIN_SECONDS,
DRY_RUN, SEED. Under DRY_RUN=1 two steps are made and saved, which proves the whole way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers.utils import logging as transformers_logging

from posttrain.infra.files import read_jsonl
from posttrain.prompting import render_example
from posttrain.training.budget import Budget, HandInCost, Progress
from posttrain.training.curve import Curve
from posttrain.training.examples import Batch, Row, TokenPair, batches
from posttrain.training.models import ModelTrainer, learning_rate_for, read_base
from posttrain.training.sft import SftSettings, StepReport

DRY_STEPS = 2
_UNBOUNDED_S = 366 * 24 * 3600.0


@dataclass(frozen=True)
class Trained:
    """What came of a training."""

    folder: Path
    """The complete checkpoint."""
    steps: int
    loss: float
    """Of the last step."""


def load_rows(folder: str | Path | None = None) -> list[dict[str, Any]]:
    """The visible rows of the task: dicts with the fields of train.jsonl, the gold answer under `answer`."""
    return list(read_jsonl(Path(folder or os.environ["DATA_PATH"]) / "train.jsonl"))


def fine_tune(
    rows: Sequence[Row] | None = None,
    *,
    learning_rate: float | None = None,
    batch_size: int = 32,
    epochs: float = 3.0,
    max_steps: int | None = None,
    max_length: int = 2048,
    warmup: float = 0.05,
    weight_decay: float = 0.0,
    max_gradient_norm: float = 1.0,
    seed: int | None = None,
    render: Callable[[Row], TokenPair] = render_example,
    output: str | Path | None = None,
) -> Trained:
    """Supervised fine-tuning of the base's whole model on the graded prompt, saved as a full checkpoint.

    Ends after `epochs`, after `max_steps`, or when TRAIN_SECONDS leave just the time to save, whichever
    comes first. `learning_rate` None: by the size of the model. `rows` None: all visible rows. Raises
    TrainingDiverged when loss or gradients stay without finite numbers.
    """
    environ = os.environ
    transformers_logging.disable_progress_bar()
    torch.manual_seed(int(environ.get("SEED") or 0) if seed is None else seed)
    rows = load_rows() if rows is None else list(rows)
    base = read_base(Path(environ["MODEL_PATH"]))
    settings = SftSettings(
        learning_rate=learning_rate_for(base.parameters) if learning_rate is None else learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        max_gradient_norm=max_gradient_norm,
        max_tokens=16384 if base.device == "cuda" else 4096,
    )
    stream = batches(
        rows,
        render,
        size=batch_size,
        seed=int(environ.get("SEED") or 0) if seed is None else seed,
        max_length=min(max_length, base.max_length),
    )
    limit = DRY_STEPS if environ.get("DRY_RUN") == "1" else max_steps
    _say(
        f"{len(rows)} rows, {base.parameters / 1e6:.0f}M parameters, learning rate {settings.learning_rate:g}"
    )
    began = time.monotonic()
    trainer = ModelTrainer(base, settings)
    cost = HandInCost(base.checkpoint_bytes)
    # a machine that was slow to load will be slow to save
    cost.measured_s = max(time.monotonic() - began, (cost.reserve() - 3.0) / 1.5)
    progress = Progress(Budget(_seconds_left(environ)), cost, examples=max(1, int(epochs * len(rows))))
    report = _train(trainer, stream, progress, limit, _curve(environ))
    folder = trainer.save(_target(environ, output))
    _say(f"saved {folder} after {report.step} steps, last loss {report.loss:.4f}")
    return Trained(folder=folder, steps=report.step, loss=report.loss)


def _train(
    trainer: ModelTrainer,
    stream: Iterator[Batch],
    progress: Progress,
    limit: int | None,
    curve: Callable[[StepReport], None],
) -> StepReport:
    """At least one step. A bound in steps sets the pace of the learning rate, so that it repeats exactly;
    time does where it will be over before.
    """
    steps = 0
    while True:
        batch = next(stream)
        report = trainer.step(batch, progress=max(progress.share(), steps / limit if limit else 0.0))
        steps += 1
        curve(report)
        progress.add(len(batch))
        if progress.finished() or (limit is not None and steps >= limit):
            return report


def _seconds_left(environ: Mapping[str, str]) -> float:
    """TRAIN_SECONDS count from the start of the process: on a busy machine imports alone take long."""
    stated = environ.get("TRAIN_SECONDS")
    return float(stated) - (time.time() - psutil.Process().create_time()) if stated else _UNBOUNDED_S


def _target(environ: Mapping[str, str], output: str | Path | None) -> Path:
    stated = environ.get("CHECKPOINT_DIR")
    return Path(output or stated or Path(environ["OUTPUT_DIR"]) / "v1")


def _curve(environ: Mapping[str, str]) -> Callable[[StepReport], None]:
    return Curve(Path(environ.get("CURVE_FILE") or "curve.jsonl"), log=_say).add


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
