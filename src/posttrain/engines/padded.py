"""Answers from any causal model of transformers, by its own `generate` over padded batches.

The way for architectures that `decoder` does not compute: slower, and as general as transformers is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from posttrain.core.scores import Output
from posttrain.engines.batching import Answered, Asked, Stops
from posttrain.engines.sampling import Sampler


class _Chosen(LogitsProcessor):
    """Our sampler's choice, told to `generate` as the only token that is possible."""

    def __init__(self, requests: Sequence[Asked], sampler: Sampler, vocabulary: int, device: Any) -> None:
        self._sampler = sampler
        self._generators = [asked.generator for asked in requests]
        self._seen: torch.Tensor | None = None
        if sampler.penalizes:
            self._seen = torch.zeros((len(requests), vocabulary), dtype=torch.bool, device=device)
            for row, asked in enumerate(requests):
                self._seen[row, list(asked.tokens)] = True

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        seen = None if self._seen is None else self._seen[:, : scores.shape[1]]
        chosen = self._sampler.choose(scores, seen=seen, generators=self._generators)[:, None]
        if seen is not None:
            seen.scatter_(1, chosen, value=True)
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen, 0.0)


class _Ended(StoppingCriteria):
    """Rows that are complete: by an end token, a stop text, or their own length limit."""

    def __init__(self, requests: Sequence[Asked], stops: Stops, width: int) -> None:
        self._requests, self._stops, self._width = requests, stops, width
        self._done = [False] * len(requests)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ARG002
        for row, (asked, tokens) in enumerate(zip(self._requests, input_ids.tolist(), strict=True)):
            if not self._done[row]:
                answer = tokens[self._width :]
                full = len(answer) >= asked.limit
                self._done[row] = self._stops.is_end(answer[-1]) or full or self._stops.found(answer)
        return torch.tensor(self._done, device=input_ids.device)


def answer_padded(
    model: Any,
    requests: Sequence[Asked],
    *,
    rows: int,
    sampler: Sampler,
    stops: Stops,
) -> Iterator[Answered]:
    """As `batching.answer_rows`, in batches that end when their last row does."""
    for start in range(0, len(requests), rows):
        batch = requests[start : start + rows]
        for asked, answer in zip(batch, _generate(model, batch, sampler, stops), strict=True):
            yield Answered(asked.index, _output(answer, asked, stops))


def _generate(model: Any, batch: Sequence[Asked], sampler: Sampler, stops: Stops) -> list[list[int]]:
    """New tokens of each row, with whatever follows its end."""
    width = max(len(asked.tokens) for asked in batch)
    tokens = torch.tensor([[0] * (width - len(asked.tokens)) + list(asked.tokens) for asked in batch])
    mask = torch.tensor([[0] * (width - len(asked.tokens)) + [1] * len(asked.tokens) for asked in batch])
    vocabulary = model.get_output_embeddings().out_features
    whole = model.generate(
        input_ids=tokens.to(model.device),
        attention_mask=mask.to(model.device),
        generation_config=GenerationConfig(
            max_new_tokens=max(asked.limit for asked in batch), do_sample=False, pad_token_id=0
        ),
        logits_processor=LogitsProcessorList([_Chosen(batch, sampler, vocabulary, model.device)]),
        stopping_criteria=StoppingCriteriaList([_Ended(batch, stops, width)]),
    )
    answers: list[list[int]] = whole[:, width:].tolist()
    return answers


def _output(answer: Sequence[int], asked: Asked, stops: Stops) -> Output:
    kept: list[int] = []
    for token in answer[: asked.limit]:
        if stops.is_end(token):
            return Output(text=stops.text(kept), tokens=len(kept))
        kept.append(token)
        if stops.found(kept):
            return Output(text=stops.text(kept), tokens=len(kept))
    return Output(text=stops.text(kept), tokens=len(kept), cut=True)
