"""The transformers engine: the base by its own config, a submission's tensors in it, texts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from posttrain.checkpoints.tensors import TensorTarget
from posttrain.core.engine import (
    BaseFacts,
    NumericPlan,
    Progress,
    Prompt,
    PromptSettings,
    RenderedPrompt,
)
from posttrain.core.errors import DeviceBusy, InfrastructureError, boundary
from posttrain.core.grading import LoadReport
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.batching import Answered, Asked, Stops, answer_rows
from posttrain.engines.decoder import Decoder, supports
from posttrain.engines.device import claim_memory
from posttrain.engines.lanes import Report, run_lanes
from posttrain.engines.padded import answer_padded
from posttrain.engines.prompting import render_turns, stop_ids, uses_date
from posttrain.engines.sampling import Sampler, generator_for


class TransformersEngine:
    """One base model; `load` replaces its parameters in place, everything else stays the base's."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._model: Any = None

    def open(self, base: str, numeric: NumericPlan) -> BaseFacts:
        self._numeric = numeric
        torch.set_num_threads(1 if numeric.lanes > 1 else numeric.threads)
        claim_memory(numeric)
        with boundary(InfrastructureError, f"opening the base model {base}"), _memory():
            self._tokenizer = AutoTokenizer.from_pretrained(
                base, trust_remote_code=False, local_files_only=True
            )
            self._model = _base_model(base, numeric)
            self._target = TensorTarget(self._model, Path(base))
        self._decoder = Decoder(self._model) if supports(self._model) else None
        self._stop_ids = stop_ids(self._tokenizer, self._model.generation_config.eos_token_id)
        self._model.generation_config = GenerationConfig()  # what the plan says is all that counts
        self._max_length = getattr(self._model.config, "max_position_embeddings", None)
        template = self._tokenizer.get_chat_template() if self._tokenizer.chat_template else None
        return BaseFacts(
            has_chat_template=template is not None,
            uses_date=uses_date(template),
            stop_token_ids=self._stop_ids,
            max_length=self._max_length,
            parameters=self._model.num_parameters(),
            versions={"torch": torch.__version__, "transformers": transformers.__version__},
        )

    def load(self, folder: str | None) -> LoadReport:
        with _memory():
            if folder is None:
                self._target.load_base()
                return LoadReport(dtype=self._numeric.dtype, copy_of_base=True, changed_share=0.0)
            return self._target.load(Path(folder))

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
        if not self._target.whole:
            raise InfrastructureError("no checkpoint is loaded: the last one could not be taken")
        self.warnings.clear()
        outputs: list[Output | None] = [None] * (len(prompts) * generation.samples)
        requests = self._requests(prompts, self.render(prompts, prompt), generation)
        for index in set(range(len(outputs))) - {asked.index for asked in requests}:
            outputs[index] = Output(text="", tokens=0, cut=True)

        def report(answered: Answered) -> None:
            outputs[answered.index] = answered.output
            progress(sum(output is not None for output in outputs), len(outputs))

        with _memory():
            self._answer(requests, generation, report)
        return [_complete(output) for output in outputs]

    def _requests(
        self, prompts: Sequence[Prompt], rendered: Sequence[RenderedPrompt], generation: GenerationSettings
    ) -> list[Asked]:
        """What fits the base's context, in the order of the plan; the longest prompts first."""
        limits = [self._limit(len(text.token_ids), generation) for text in rendered]
        self._warn_about(limits, generation)
        requests = [
            Asked(
                index=number * generation.samples + sample,
                tokens=text.token_ids,
                limit=limit,
                generator=generator_for(self._numeric.seed, asked.id, sample),
            )
            for number, (asked, text, limit) in enumerate(zip(prompts, rendered, limits, strict=True))
            for sample in range(generation.samples)
            if limit > 0
        ]
        if self._numeric.order == "length":
            requests.sort(key=lambda asked: -len(asked.tokens))
        return requests

    def _limit(self, length: int, generation: GenerationSettings) -> int:
        if self._max_length is None:
            return generation.max_new_tokens
        return max(0, min(generation.max_new_tokens, self._max_length - length))

    def _warn_about(self, limits: Sequence[int], generation: GenerationSettings) -> None:
        without = sum(limit == 0 for limit in limits)
        shortened = sum(0 < limit < generation.max_new_tokens for limit in limits)
        if without:
            self.warnings.append(
                f"{without} prompts fill the context of {self._max_length} tokens: not answered"
            )
        if shortened:
            self.warnings.append(
                f"{shortened} answers are limited by the context of {self._max_length} tokens"
            )

    def _answer(self, requests: Sequence[Asked], generation: GenerationSettings, report: Report) -> None:
        numeric = self._numeric
        stops = Stops(self._tokenizer, ids=self._stop_ids, texts=generation.stop)
        work = self._work(generation, stops)
        run_lanes(requests, work, lanes=numeric.lanes, threads=numeric.threads, report=report)

    def _work(
        self, generation: GenerationSettings, stops: Stops
    ) -> Callable[[Sequence[Asked], Report], None]:
        rows, sampler, decoder = self._numeric.rows, Sampler(generation), self._decoder

        def by_slots(requests: Sequence[Asked], report: Report) -> None:
            assert decoder is not None
            answer_rows(decoder, requests, rows=rows, sampler=sampler, stops=stops, report=report)

        def padded(requests: Sequence[Asked], report: Report) -> None:
            answer_padded(self._model, requests, rows=rows, sampler=sampler, stops=stops, report=report)

        return padded if decoder is None else by_slots


def _base_model(base: str, numeric: NumericPlan) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        base,
        dtype=getattr(torch, numeric.dtype),
        # transformers itself takes sdpa wherever an architecture has it, and says no where it has not
        attn_implementation=None if numeric.attention == "sdpa" else numeric.attention,
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
    )
    return model.eval().requires_grad_(False).to(numeric.device)


def _complete(output: Output | None) -> Output:
    if output is None:
        raise InfrastructureError("the engine left a prompt without an answer")
    return output


class _memory:  # noqa: N801  (reads as a word in `with`)
    """Device memory that is not there, by its name: the only trouble that waiting can cure."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            raise DeviceBusy(f"out of device memory: {str(error).splitlines()[0]}") from error
