"""The vLLM engine: the rules of `checkpoints/tensors` over the base in memory, texts from a running vLLM.

A submission's tensors are first taken into the base's own model on the processor, as with any engine; what
stands there is then put in place in a running vLLM, which was built from the base's config and tokenizer.
vLLM itself starts with the first checkpoint that has to answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.checkpoints.tensors import TensorTarget
from posttrain.core.engine import BaseFacts, NumericPlan, Progress, Prompt, PromptSettings, RenderedPrompt
from posttrain.core.errors import InfrastructureError, boundary
from posttrain.core.grading import LoadReport
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.batching import Stops
from posttrain.engines.fitting import complete, fit_requests, place_answers
from posttrain.engines.opening import base_facts, base_model, base_tokenizer, context_of
from posttrain.engines.prompting import render_turns, stop_ids
from posttrain.engines.vllm_settings import environment, installed_build, require_build

if TYPE_CHECKING:
    from posttrain.engines.vllm_running import RunningVllm


class VllmEngine:
    """One base model; `load` replaces the parameters of a running vLLM, everything else stays the base's."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._running: RunningVllm | None = None
        self._in_place = False
        """Whether vLLM holds what the last load took."""

    def open(self, base: str, numeric: NumericPlan) -> BaseFacts:
        build = installed_build()
        require_build(build, gpus=("",) if numeric.device.startswith("cuda") else ())
        os.environ.update(environment(numeric))
        self._base, self._numeric = Path(base), numeric
        with boundary(InfrastructureError, f"opening the base model {base}"):
            self._tokenizer = base_tokenizer(base)
            model = base_model(base, numeric)
            self._target = TensorTarget(model, self._base)
        self._stop_ids = stop_ids(self._tokenizer, model.generation_config.eos_token_id)
        self._max_length = context_of(model)
        return base_facts(
            self._tokenizer,
            model,
            stop_token_ids=self._stop_ids,
            versions={"vllm": build.version if build else ""},
        )

    def load(self, folder: str | None) -> LoadReport:
        self._in_place = False
        if folder is None:
            self._target.load_base()
            report = LoadReport(dtype=self._numeric.dtype, copy_of_base=True, changed_share=0.0)
        else:
            report = self._target.load(Path(folder))
        if folder is None or not report.copy_of_base:  # a copy is seldom asked anything
            self._put_in_place()
        return report

    def render(self, prompts: Sequence[Prompt], prompt: PromptSettings) -> list[RenderedPrompt]:
        return [render_turns(self._tokenizer, asked.turns, prompt) for asked in prompts]

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        prompt: PromptSettings,
        generation: GenerationSettings,
        progress: Progress,
    ) -> list[Output]:
        running = self._running if self._in_place and self._running else self._put_in_place()
        fitted = fit_requests(
            prompts,
            self.render(prompts, prompt),
            generation,
            numeric=self._numeric,
            max_length=self._max_length,
        )
        self.warnings[:] = fitted.warnings
        stops = Stops(self._tokenizer, ids=self._stop_ids, texts=generation.stop)
        try:
            answers = running.answer(
                fitted.requests, generation, stops=stops, stop_ids=self._stop_ids, progress=progress
            )
            return complete(place_answers(fitted, answers))
        except InfrastructureError:
            self._drop()  # it may still hold requests, which would be answered among the next ones
            raise

    def sleep(self) -> None:
        """Give the device's memory back; the next load or generation takes it again."""
        if self._running is not None:
            self._in_place = False
            self._running.sleep()

    def _put_in_place(self) -> RunningVllm:
        """Make vLLM hold what the last load took, starting it if need be."""
        from posttrain.engines.vllm_running import RunningVllm

        if not self._target.whole:
            raise InfrastructureError("no checkpoint is loaded: the last one could not be taken")
        if self._running is None:
            self._running = RunningVllm(self._base, self._numeric, self._target)
        self._running.put(self._target)
        self._in_place = True
        return self._running

    def _drop(self) -> None:
        running, self._running, self._in_place = self._running, None, False
        if running is not None:
            with suppress(InfrastructureError):
                running.close()
