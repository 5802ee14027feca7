"""From rows to batches of token ids: rendered as they are needed, batched by length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
TokenPair = tuple[Sequence[int], Sequence[int]]
"""Prompt ids and answer ids."""


@dataclass(frozen=True)
class Example:
    """One training pair; the loss belongs on the answer alone."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


Batch = tuple[Example, ...]


def batches(
    rows: Sequence[Row],
    render: Callable[[Row], TokenPair],
    *,
    size: int,
    seed: int,
    max_length: int,
    pool: int = 16,
) -> Iterator[Batch]:
    """Batches of `size` examples without end, each epoch in another order.

    A pool of `pool` batches at a time is rendered, sorted by length and cut, so that a batch holds
    rows of like length while the order of batches stays random. Rows longer than `max_length`, or
    without prompt or answer, are left out; ValueError if that leaves none.
    """
    if not rows:
        raise ValueError("there are no rows to train on")
    shuffler = random.Random(seed)  # noqa: S311 - an order, not a secret
    while True:
        used = 0
        order = shuffler.sample(range(len(rows)), len(rows))
        for start in range(0, len(order), size * pool):
            chosen = [_example(render(rows[index])) for index in order[start : start + size * pool]]
            usable = [example for example in chosen if _usable(example, max_length)]
            used += len(usable)
            yield from _cut(usable, size, shuffler)
        if not used:
            raise ValueError(
                f"none of {len(rows)} rows has a prompt and an answer within {max_length} tokens"
            )


def _example(pair: TokenPair) -> Example:
    prompt, answer = pair
    return Example(tuple(prompt), tuple(answer))


def _usable(example: Example, max_length: int) -> bool:
    return bool(example.prompt and example.answer) and example.length <= max_length


def _cut(examples: list[Example], size: int, shuffler: random.Random) -> list[Batch]:
    ordered = sorted(examples, key=lambda example: example.length)
    cut = [tuple(ordered[start : start + size]) for start in range(0, len(ordered), size)]
    shuffler.shuffle(cut)
    return cut


def shared_prefix(batch: Sequence[Example]) -> int:
    """How many leading tokens all prompts share, leaving each prompt at least its last token."""
    prompts = [example.prompt for example in batch]
    longest = min(len(prompt) for prompt in prompts) - 1
    columns = enumerate(zip(*prompts, strict=False))
    return min(longest, next((place for place, column in columns if len(set(column)) > 1), longest))


def split_by_tokens(batch: Batch, *, prefix: int, max_tokens: int) -> list[Batch]:
    """The batch in parts whose padded size beyond the shared prefix stays below `max_tokens`."""
    parts: list[list[Example]] = [[]]
    width = 0
    for example in sorted(batch, key=lambda example: example.length):
        width = example.length - prefix
        if parts[-1] and width * (len(parts[-1]) + 1) > max_tokens:
            parts.append([])
        parts[-1].append(example)
    return [tuple(part) for part in parts]
