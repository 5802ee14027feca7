"""Rows in, answers out: slots that are refilled as rows end, with a decoder that never pads.

Which rows share a batch follows from the requests and the plan alone, so the same plan gives the same
numbers and with them the same texts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from posttrain.core.scores import Output
from posttrain.engines.decoder import Decoder, Prefix, Slots
from posttrain.engines.sampling import Sampler

_PREFILL_TOKENS = 1024
"""Prompts are packed up to about this many tokens: enough for full products, small enough for caches."""
_SHORTEST_PREFIX = 8


@dataclass(frozen=True)
class Asked:
    """One answer to write."""

    index: int
    tokens: tuple[int, ...]
    limit: int
    """Most tokens of the answer."""
    generator: random.Random


@dataclass(frozen=True)
class Answered:
    index: int
    output: Output


class Stops:
    """When an answer ends, and what of it counts."""

    def __init__(self, tokenizer: Any, *, ids: Sequence[int], texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._ids = frozenset(ids)
        self._texts = tuple(texts)
        # a token is at least one byte, so a stop of n bytes lies within the last n tokens; two more
        # keep it away from the first token, at which some tokenizers drop a space
        self._tail = max((len(text.encode()) for text in texts), default=0) + 2

    def is_end(self, token: int) -> bool:
        return token in self._ids

    def found(self, tokens: Sequence[int]) -> bool:
        """Whether a stop text has just been completed."""
        if not self._texts:
            return False
        tail = self._decode(tokens[-self._tail :])
        return any(text in tail for text in self._texts)

    def may_be_found(self, before: Sequence[int], tokens: Sequence[int]) -> bool:
        """False only if `found` is False after each of `tokens`: one look instead of many."""
        if not self._texts:
            return False
        tail = self._decode([*before[len(before) - min(len(before), self._tail) :], *tokens])
        return any(text in tail for text in self._texts)

    def text(self, tokens: Sequence[int]) -> str:
        """The answer up to the first stop text."""
        whole = self._decode(tokens)
        cuts = [place for text in self._texts if (place := whole.find(text)) >= 0]
        return whole[: min(cuts)] if cuts else whole

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


@dataclass
class _Row:
    asked: Asked
    tokens: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens in the slot before the newest one is appended."""
        return len(self.asked.tokens) + len(self.tokens) - 1


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Number of leading tokens that all prompts share, at least one left over in each; 0 if hardly any."""
    if len(prompts) < 2:
        return 0
    low, high = min(map(tuple, prompts)), max(map(tuple, prompts))
    shared = next(
        (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high))
    )
    shared = min(shared, min(len(prompt) for prompt in prompts) - 1)
    return shared if shared >= _SHORTEST_PREFIX else 0


class Batch:
    """The rows that are being answered at one time."""

    def __init__(
        self, decoder: Decoder, requests: Sequence[Asked], *, rows: int, sampler: Sampler, stops: Stops
    ):
        self._decoder, self._sampler, self._stops = decoder, sampler, stops
        self._waiting = list(reversed(requests))
        rows = min(rows, len(requests))
        capacity = max(len(asked.tokens) + asked.limit for asked in requests)
        self._slots = Slots(decoder, rows=rows, capacity=capacity)
        self._capacity_rows = rows
        self._rows: list[_Row] = []
        self._seen = decoder.blank_marks(rows) if sampler.penalizes else None
        self._prefix = self._share([asked.tokens for asked in requests])

    def run(self) -> Iterator[Answered]:
        """Answers as they are complete."""
        while self._waiting or self._rows:
            yield from self._refill()
            if self._rows:
                yield from self._advance()

    def _share(self, prompts: Sequence[Sequence[int]]) -> Prefix | None:
        shared = common_prefix(prompts)
        if not shared:
            return None
        prefix = self._decoder.prefix(prompts[0][:shared])
        self._slots.preset(prefix)
        return prefix

    def _refill(self) -> Iterator[Answered]:
        """Fill free slots with waiting prompts and choose the first token of each."""
        while self._waiting and len(self._rows) < self._capacity_rows:
            group = self._next_group(self._capacity_rows - len(self._rows))
            begin = len(self._rows)
            places = range(begin, begin + len(group))
            logits = self._decoder.prefill(
                [asked.tokens for asked in group], slots=self._slots, places=places, prefix=self._prefix
            )
            self._rows.extend(_Row(asked) for asked in group)
            self._mark_prompts(begin)
            yield from self._take(logits, begin)

    def _next_group(self, free: int) -> list[Asked]:
        group: list[Asked] = []
        tokens = 0
        while self._waiting and len(group) < free and tokens < _PREFILL_TOKENS:
            group.append(self._waiting.pop())
            tokens += len(group[-1].tokens)
        return group

    def _advance(self) -> Iterator[Answered]:
        """One token more for every row."""
        lengths = [row.length for row in self._rows]
        logits = self._decoder.step([row.tokens[-1] for row in self._rows], lengths, slots=self._slots)
        yield from self._take(logits, 0)

    def _take(self, logits: torch.Tensor, begin: int) -> Iterator[Answered]:
        """Append the chosen tokens to the rows from `begin` on; rows that end leave their slots."""
        rows = self._rows[begin:]
        seen = None if self._seen is None else self._seen[begin : begin + len(rows)]
        chosen = self._sampler.choose(logits, seen=seen, generators=[row.asked.generator for row in rows])
        if seen is not None:
            seen.scatter_(1, chosen[:, None], value=True)
        ended = []
        for place, (row, token) in enumerate(zip(rows, chosen.tolist(), strict=True), start=begin):
            answered = self._append(row, token)
            if answered is not None:
                ended.append(place)
                yield answered
        for place in reversed(ended):
            self._leave(place)

    def _append(self, row: _Row, token: int) -> Answered | None:
        """The row's answer if `token` completes it."""
        end = self._stops.is_end(token)
        if not end:
            row.tokens.append(token)
            end = self._stops.found(row.tokens)
        if not end and len(row.tokens) < row.asked.limit:
            return None
        output = Output(text=self._stops.text(row.tokens), tokens=len(row.tokens), cut=not end)
        return Answered(row.asked.index, output)

    def _leave(self, place: int) -> None:
        """The last row moves into the free slot, so that the slots in use stay the first ones."""
        last = self._rows.pop()
        source = len(self._rows)
        if source != place:
            self._rows[place] = last
            self._slots.move(source, place, last.length)
            if self._seen is not None:
                self._seen[place] = self._seen[source]

    def _mark_prompts(self, begin: int) -> None:
        if self._seen is None:
            return
        for place, row in enumerate(self._rows[begin:], start=begin):
            self._seen[place] = False
            self._seen[place, list(row.asked.tokens)] = True


def answer_rows(
    decoder: Decoder,
    requests: Sequence[Asked],
    *,
    rows: int,
    sampler: Sampler,
    stops: Stops,
) -> Iterator[Answered]:
    """Every answer when it is complete, `rows` at a time in the order given."""
    if requests:
        yield from Batch(decoder, requests, rows=rows, sampler=sampler, stops=stops).run()
