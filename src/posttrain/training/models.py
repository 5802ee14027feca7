"""Loading a base model for training, and knobs that follow from its size and the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from posttrain.training.examples import Batch
from posttrain.training.sft import Sft, SftSettings, StepReport, save_checkpoint

_REFERENCE_RATE, _REFERENCE_PARAMETERS = 2e-4, 135e6
_LOWEST_RATE = 2e-6
FEWEST_TOKENS = 512
"""Beyond the shared prefix, in a step."""


@dataclass(frozen=True)
class Base:
    """What training starts from."""

    folder: Path
    tokenizer: Any
    dtype: torch.dtype
    """In which the base is stored, and checkpoints are."""
    parameters: int
    max_length: int
    device: str

    @property
    def checkpoint_bytes(self) -> float:
        return float(self.parameters * self.dtype.itemsize)

    def model(self) -> Any:
        """A fresh copy in fp32 on the device: small steps vanish where weights are kept in bf16."""
        model = AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
        return model.to(self.device)


def read_base(folder: Path) -> Base:
    """Tokenizer and facts of a model folder; the weights are read when training starts."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(config).num_parameters()
    return Base(
        folder=folder,
        tokenizer=AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False),
        dtype=config.dtype or torch.bfloat16,
        parameters=parameters,
        max_length=int(getattr(config, "max_position_embeddings", None) or 2048),
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


class ModelTrainer:
    """The session's view of a model in training."""

    def __init__(self, base: Base, settings: SftSettings) -> None:
        self._base = base
        self._model = base.model()
        self._sft = Sft(self._model, settings=settings, pad=pad_token(base.tokenizer))

    def step(self, batch: Batch, *, progress: float) -> StepReport:
        return self._sft.step(batch, progress=progress)

    def save(self, folder: Path) -> Path:
        return save_checkpoint(self._model, self._base.tokenizer, folder, dtype=self._base.dtype)

    def row_cost(self, batch: Batch) -> tuple[float, float]:
        """Seconds and tokens that a row costs in a batch of this size, which is learnt from as any other."""
        began = time.perf_counter()
        report = self.step(batch, progress=0.0)
        return (time.perf_counter() - began) / len(batch), report.tokens / len(batch)


def batch_size_for(
    train_s: float, *, seconds_per_row: float, tokens_per_row: float, most: int, steps: int
) -> int:
    """`most` rows a step, halved while fewer than `steps` steps would fit and rows are dear.

    A step has a cost of its own (weights are cast, an optimiser runs) that many tokens share: below
    some 500 of them a smaller batch makes rows dearer and saves no time.
    """
    size = most
    while size * seconds_per_row * steps > train_s and size // 2 * tokens_per_row >= FEWEST_TOKENS:
        size //= 2
    return size


def learning_rate_for(parameters: int) -> float:
    """2e-4 for 135M parameters, less for more in proportion, never below 2e-6."""
    return min(_REFERENCE_RATE, max(_LOWEST_RATE, _REFERENCE_RATE * _REFERENCE_PARAMETERS / parameters))


def pad_token(tokenizer: Any) -> int:
    """Any valid id: padded places are masked and never learnt."""
    known = (token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None)
    return int(next(known, 0))
