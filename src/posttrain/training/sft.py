"""Supervised fine-tuning: fp32 weights, bf16 arithmetic, one guarded optimiser step at a time.

Who calls decides when to stop, save and submit; here is what happens in a step.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posttrain.core.errors import PosttrainError
from posttrain.training.examples import Batch, shared_prefix, split_by_tokens
from posttrain.training.loss import answer_loss, sharing_agrees

SHORT_ROW = 128
"""Tokens up to which plain attention is the faster one on a CPU."""


class TrainingDiverged(PosttrainError):
    """Too many batches gave a loss or a gradient that is no number."""


@dataclass(frozen=True)
class SftSettings:
    """What a step does; nothing about time."""

    learning_rate: float = 2e-4
    warmup: float = 0.05
    """Share of the training in which the learning rate rises."""
    floor: float = 0.02
    """Share of the learning rate that is left at the end."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    max_gradient_norm: float = 1.0
    max_tokens: int = 4096
    """Padded tokens that go through the model at a time; a larger batch is accumulated."""
    tolerated: int = 8
    """Batches in a row without a finite loss and gradient before training is given up."""


@dataclass(frozen=True)
class StepReport:
    """One optimiser step, as a line of the training curve."""

    step: int
    loss: float
    """Mean over answer tokens; not finite if the batch was skipped."""
    gradient_norm: float
    learning_rate: float
    tokens: int
    """Padded tokens that went through the model."""
    skipped: int
    """Batches skipped so far."""


def learning_rate_factor(progress: float, *, warmup: float, floor: float) -> float:
    """A short rise, then a straight line down: of progress in [0, 1], whatever measures it."""
    progress = min(1.0, max(0.0, progress))
    if progress < warmup:
        return max(progress / warmup, 0.05)
    return floor + (1.0 - floor) * (1.0 - progress) / (1.0 - warmup)


class Sft:
    """A model in training."""

    def __init__(self, model: Any, *, settings: SftSettings, pad: int) -> None:
        self._model = model.train()
        self._settings = settings
        self._pad = pad
        self._share: bool | None = None
        self._skipped = 0
        self._skipped_in_a_row = 0
        self._step = 0
        self._optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, batch: Batch, *, progress: float) -> StepReport:
        """One optimiser step; a batch without finite loss and gradient changes nothing but the count.

        Raises TrainingDiverged after too many such batches in a row.
        """
        rate = self._set_learning_rate(progress)
        prefix = shared_prefix(batch) if self._sharing(batch) else 0
        parts = split_by_tokens(batch, prefix=prefix, max_tokens=self._settings.max_tokens)
        loss = self._accumulate(parts)
        norm = float(
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_gradient_norm)
        )
        self._apply_or_skip(usable=math.isfinite(loss) and math.isfinite(norm))
        self._optimiser.zero_grad(set_to_none=True)
        self._step += 1
        return StepReport(
            step=self._step,
            loss=loss,
            gradient_norm=norm,
            learning_rate=rate,
            tokens=sum(len(part) * (max(row.length for row in part) - prefix) + prefix for part in parts),
            skipped=self._skipped,
        )

    def _set_learning_rate(self, progress: float) -> float:
        settings = self._settings
        factor = learning_rate_factor(progress, warmup=settings.warmup, floor=settings.floor)
        for group in self._optimiser.param_groups:
            group["lr"] = settings.learning_rate * factor
        return settings.learning_rate * factor

    def _sharing(self, batch: Batch) -> bool:
        # in fp32: the two ways differ by rounding alone, which in bf16 can be as large as a real fault
        if self._share is None:
            self._share = sharing_agrees(self._model, batch[:2], pad=self._pad)
        return self._share

    def _accumulate(self, parts: Sequence[Batch]) -> float:
        """Gradients of the mean loss over all answer tokens; the loss itself."""
        answers = sum(len(example.answer) for part in parts for example in part)
        total = 0.0
        for part in parts:
            self._choose_attention(part)
            with self._autocast():
                loss = answer_loss(self._model, part, pad=self._pad, share=bool(self._share)) / answers
            total += float(loss.detach())
            if math.isfinite(total):
                loss.backward()
        return total

    def _choose_attention(self, part: Batch) -> None:
        # measured on two cores: eager steps on short rows cost a quarter less than fused ones, whose
        # backward pass is slow there; on long rows eager would need memory by the square of the length
        if self._model.device.type == "cpu":
            short = max(example.length for example in part) <= SHORT_ROW
            self._model.set_attn_implementation("eager" if short else "sdpa")

    def _apply_or_skip(self, *, usable: bool) -> None:
        # one step on a non-finite gradient ruins the weights for good; attention kernels give such at
        # some padded lengths although the loss is fine
        if usable:
            self._optimiser.step()
            self._skipped_in_a_row = 0
            return
        self._skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row > self._settings.tolerated:
            raise TrainingDiverged(f"{self._skipped_in_a_row} batches in a row without a finite gradient")

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._model.device.type, torch.bfloat16)


def save_checkpoint(model: Any, tokenizer: Any, folder: Path, *, dtype: torch.dtype) -> Path:
    """A complete checkpoint at `folder`: safetensors in `dtype`, config and tokenizer.

    It is written beside and renamed, so that the folder is whole or not there.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    weights = _cast(model.state_dict(), dtype)
    model.save_pretrained(unfinished, state_dict=weights, safe_serialization=True)
    _state_dtype(unfinished / "config.json", dtype)
    tokenizer.save_pretrained(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return folder


def _cast(weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights in `dtype`; tensors that are one and the same stay so, or a tied head is stored twice."""
    cast: dict[int, torch.Tensor] = {}
    for tensor in weights.values():
        cast.setdefault(tensor.data_ptr(), tensor.to(dtype))
    return {name: cast[tensor.data_ptr()] for name, tensor in weights.items()}


def _state_dtype(config: Path, dtype: torch.dtype) -> None:
    """Let config.json name the dtype of the file instead of the one in memory."""
    stated = json.loads(config.read_text("utf-8"))
    key = "dtype" if "dtype" in stated else "torch_dtype"
    config.write_text(json.dumps(stated | {key: str(dtype).removeprefix("torch.")}, indent=2), "utf-8")
