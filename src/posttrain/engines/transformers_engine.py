"""The transformers engine: the base by its own config, a submission's tensors in it, texts out."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from posttrain.checkpoints.tensors import TensorTarget
from posttrain.core.engine import (
    BaseFacts,
    NumericPlan,
    Progress,
    Prompt,
    PromptSettings,
    RenderedPrompt,
    Turn,
)
from posttrain.core.errors import DeviceBusy, InfrastructureError, boundary
from posttrain.core.grading import LoadReport
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.batching import Answered, Asked, Stops, answer_rows
from posttrain.engines.decoder import Decoder, supports
from posttrain.engines.device import DeviceContext, claim_memory, room
from posttrain.engines.fitting import complete, fit_requests, place_answers
from posttrain.engines.lanes import Report, run_lanes
from posttrain.engines.opening import base_facts, base_model, base_tokenizer, context_of
from posttrain.engines.padded import answer_padded
from posttrain.engines.prompting import render_turns, stop_ids
from posttrain.engines.sampling import Sampler
from posttrain.engines.static_batching import StaticEngine
from posttrain.engines.static_ops import best_ops

_MOST_RENDERED = 50_000
_READING_THREADS = 8


class TransformersEngine:
    """One base model; `load` replaces its parameters in place, everything else stays the base's."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._model: Any = None
        self._target: TensorTarget | None = None
        self._decoder: Decoder | None = None
        self._static: StaticEngine | None = None
        self._plain: str | None = None
        """Why a GPU does without kernels, if so."""
        self._rendered = _Rendered()
        self._context = DeviceContext()

    def open(self, base: str, numeric: NumericPlan) -> BaseFacts:
        self._numeric, self._base = numeric, base
        torch.set_num_threads(_threads(numeric))
        with boundary(InfrastructureError, f"opening the base model {base}"):
            self._tokenizer = base_tokenizer(base)
        self._wake()
        self._stop_ids = stop_ids(self._tokenizer, self._ends)
        self._max_length = context_of(self._model)
        return base_facts(self._tokenizer, self._model, stop_token_ids=self._stop_ids)

    def _wake(self) -> None:
        """Take the memory, and the base's model into it."""
        self._context.take()
        claim_memory(self._numeric)
        with boundary(InfrastructureError, f"opening the base model {self._base}"), _memory():
            # transformers itself takes sdpa wherever an architecture has it, and says no where it has not
            attention = None if self._numeric.attention == "sdpa" else self._numeric.attention
            model = base_model(self._base, self._numeric, attention=attention)
            self._model = model.to(self._numeric.device)
            self._target = TensorTarget(self._model, Path(self._base))
        self._decoder = Decoder(self._model) if supports(self._model) else None
        self._static = self._static_engine()
        self._ends = self._model.generation_config.eos_token_id
        self._model.generation_config = GenerationConfig()  # what the plan says is all that counts

    def _static_engine(self) -> StaticEngine | None:
        """Recorded steps, where there is a GPU to replay them."""
        if self._decoder is None or self._decoder.device.type != "cuda":
            return None
        with _memory():
            ops, self._plain = best_ops(self._decoder.device)
        return StaticEngine(self._decoder, ops, rows=self._numeric.rows, room=room(self._numeric))

    def sleep(self) -> None:
        self._model = self._target = self._decoder = self._static = None
        gc.collect()
        self._context.give_back()

    def load(self, folder: str | None) -> LoadReport:
        if self._model is None:
            self._wake()
        with _memory():
            assert self._target is not None
            if self._decoder is not None and not self._decoder.packed():
                raise InfrastructureError("parameters are no longer what is computed with")
            if folder is None:
                self._target.load_base()
                return LoadReport(dtype=self._numeric.dtype, copy_of_base=True, changed_share=0.0)
            return self._target.load(Path(folder))

    def render(self, prompts: Sequence[Prompt], prompt: PromptSettings) -> list[RenderedPrompt]:
        return self._rendered.of(prompts, prompt, self._tokenizer)

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        prompt: PromptSettings,
        generation: GenerationSettings,
        progress: Progress,
    ) -> list[Output]:
        if self._target is None or not self._target.whole:
            raise InfrastructureError("no checkpoint is loaded: the last one could not be taken")
        fitted = fit_requests(
            prompts,
            self.render(prompts, prompt),
            generation,
            numeric=self._numeric,
            max_length=self._max_length,
        )
        self.warnings = list(fitted.warnings)
        if self._plain is not None:
            self.warnings.append(f"graded without kernels, more slowly: {self._plain}")
        answers: list[Answered] = []
        before = fitted.places - len(fitted.requests)

        def report(answered: Answered) -> None:
            answers.append(answered)
            progress(before + len(answers), fitted.places)

        with _memory():
            self._answer(fitted.requests, generation, report)
        return complete(place_answers(fitted, answers))

    def _answer(self, requests: Sequence[Asked], generation: GenerationSettings, report: Report) -> None:
        numeric = self._numeric
        stops = Stops(self._tokenizer, ids=self._stop_ids, texts=generation.stop)
        sampler, static, decoder = Sampler(generation), self._static, self._decoder

        def write(requests: Sequence[Asked]) -> Iterator[Answered]:
            if static is not None:
                return static.answer(requests, sampler=sampler, stops=stops)
            if decoder is not None:
                return answer_rows(decoder, requests, rows=numeric.rows, sampler=sampler, stops=stops)
            return answer_padded(self._model, requests, rows=numeric.rows, sampler=sampler, stops=stops)

        with torch.inference_mode():
            if static is not None:
                for answered in write(requests):
                    report(answered)
            else:
                run_lanes(requests, write, lanes=numeric.lanes, threads=numeric.threads, report=report)


class _Rendered:
    """Prompts as tokens, kept for the next checkpoint that is asked the same."""

    def __init__(self) -> None:
        self._settings: PromptSettings | None = None
        self._kept: dict[tuple[Turn, ...], RenderedPrompt] = {}

    def of(self, prompts: Sequence[Prompt], settings: PromptSettings, tokenizer: Any) -> list[RenderedPrompt]:
        if settings != self._settings or len(self._kept) > _MOST_RENDERED:
            self._settings, self._kept = settings, {}
        kept = self._kept
        for asked in prompts:
            if asked.turns not in kept:
                kept[asked.turns] = render_turns(tokenizer, asked.turns, settings)
        return [kept[asked.turns] for asked in prompts]


def _threads(numeric: NumericPlan) -> int:
    """For a GPU, threads only read checkpoints; on a processor they are part of the numbers."""
    if numeric.device.startswith("cuda"):
        return min(_READING_THREADS, len(os.sched_getaffinity(0)))
    return 1 if numeric.lanes > 1 else numeric.threads


class _memory:  # noqa: N801  (reads as a word in `with`)
    """Device memory that is not there, by its name: the only trouble that waiting can cure."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            raise DeviceBusy(f"out of device memory: {str(error).splitlines()[0]}") from error
