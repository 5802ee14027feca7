"""From logits to the next token of each row; every row draws from a generator of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from posttrain.core.specs import GenerationSettings

_BLOCK = 128
_COLDEST = 1e-5
"""A lower temperature is none: logits divided by it are no longer finite. vLLM's own bound."""


class Sampler:
    """Greedy or sampled choice for a batch of rows, in the order and meaning of transformers' processors."""

    def __init__(self, settings: GenerationSettings) -> None:
        self._settings = settings
        self.greedy = settings.temperature < _COLDEST
        self.penalizes = settings.repetition_penalty != 1.0

    def choose(
        self,
        logits: torch.Tensor,
        *,
        seen: torch.Tensor | None,
        generators: Sequence[random.Random],
    ) -> torch.Tensor:
        """One token id for each row of `logits` [rows, vocabulary].

        `seen` [rows, vocabulary] marks tokens of prompt and answer so far; needed only if `penalizes`.
        """
        if self.penalizes and seen is not None:
            penalty = self._settings.repetition_penalty
            punished = torch.where(logits < 0, logits * penalty, logits / penalty)
            logits = torch.where(seen, punished, logits)
        if self.greedy:
            return most_likely(logits)
        return self._draw(logits.float() / self._settings.temperature, generators)

    def _draw(self, logits: torch.Tensor, generators: Sequence[random.Random]) -> torch.Tensor:
        """Inverse transform sampling over the tokens in falling order of probability."""
        settings = self._settings
        count = logits.shape[-1] if settings.top_k == 0 else min(settings.top_k, logits.shape[-1])
        ordered, tokens = logits.topk(count, dim=-1)
        cumulated = ordered.softmax(dim=-1).cumsum(dim=-1)
        kept = torch.ones_like(cumulated, dtype=torch.bool)
        if settings.top_p < 1.0:
            kept[:, 1:] = cumulated[:, :-1] < settings.top_p
        mass = cumulated.gather(1, kept.sum(dim=-1, keepdim=True) - 1)
        points = torch.tensor([[generator.random()] for generator in generators], device=logits.device)
        places = torch.searchsorted(cumulated, points * mass).clamp_(max=count - 1)
        places = torch.minimum(places, kept.sum(dim=-1, keepdim=True) - 1)
        return tokens.gather(1, places).squeeze(1)


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """The first of each row's largest values; over blocks, because one long search is not vectorised."""
    rows, vocabulary = logits.shape
    if vocabulary % _BLOCK:
        return logits.max(dim=-1).indices
    blocks = logits.view(rows, -1, _BLOCK)
    block = blocks.amax(dim=-1).max(dim=-1).indices
    within = blocks[torch.arange(rows, device=logits.device), block].max(dim=-1).indices
    return block * _BLOCK + within


def generator_for(seed: int, prompt_id: str, sample: int) -> random.Random:
    """The generator of one answer; it depends on nothing but these three."""
    return random.Random(f"{seed}/{prompt_id}/{sample}")  # noqa: S311  (sampling of texts, no secret)
