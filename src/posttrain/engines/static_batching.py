"""Rows in, answers out, on a GPU: steps are replayed, and the host looks at tokens only now and then.

Which rows share a step follows from the requests, the answers and the plan: the host looks after a fixed
number of steps, never when it happens to have time. So the same plan gives the same texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from posttrain.core.errors import DeviceBusy
from posttrain.core.scores import Output
from posttrain.engines.batching import Answered, Asked, Stops
from posttrain.engines.decoder import Decoder
from posttrain.engines.device import Room
from posttrain.engines.sampling import Sampler, most_likely
from posttrain.engines.static_decoder import Arena, StaticDecoder, arena_bytes
from posttrain.engines.static_ops import Ops

STEPS = 16
"""Steps between two looks. A row that ends writes half of them in vain, on average."""
PREFILL_TOKENS = 1 << 14
"""Of the prompts of a prefill, with their padding, at most."""
_FEWEST_PREFILL_TOKENS = 256
_SIZES = tuple(sorted({base << power for base in (8, 12) for power in range(9)}))
"""Numbers of rows for which there is a graph: 8, 12, 16, 24, … 2048, 3072."""


@dataclass
class _Row:
    asked: Asked
    tokens: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.asked.limit - len(self.tokens)


class StaticEngine:
    """Answers requests by one arena and its graphs, both kept while requests need the same."""

    def __init__(self, decoder: Decoder, ops: Ops, *, rows: int, room: Room) -> None:
        """Fewer than `rows` rows are used, and shorter prefills, if `room` is short."""
        self._decoder, self._ops, self._rows, self._room = decoder, ops, rows, room
        fitting = room.working // 2 // decoder.bytes_per_token
        self._prefill = max(_FEWEST_PREFILL_TOKENS, min(PREFILL_TOKENS, fitting))
        self._kept: tuple[object, StaticDecoder] | None = None

    def answer(self, requests: Sequence[Asked], *, sampler: Sampler, stops: Stops) -> Iterator[Answered]:
        """Every answer when it is complete."""
        if not requests:
            return
        batch = Batch(
            self._prepared(requests, sampler),
            requests,
            sampler=sampler,
            stops=stops,
            decoder=self._decoder,
            prefill_tokens=self._prefill,
        )
        yield from batch.run()

    def _prepared(self, requests: Sequence[Asked], sampler: Sampler) -> StaticDecoder:
        capacity = max(len(asked.tokens) + asked.limit for asked in requests) + STEPS
        rows = self._fitting(min(self._rows, len(requests)), capacity)
        chooses = sampler.greedy and not sampler.penalizes
        key = (rows, capacity, chooses, self._decoder.head)
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # before the new one is made: both may be too much
            arena = Arena(self._decoder, rows=rows, capacity=capacity)
            static = StaticDecoder(self._decoder, arena, self._ops, most_likely if chooses else None)
            self._kept = key, static
        self._kept[1].arena.clear()
        return self._kept[1]

    def _fitting(self, wanted: int, capacity: int) -> int:
        """The smallest size with `wanted` rows, or the largest that the memory takes."""
        wanted = min((size for size in _SIZES if size >= wanted), default=_SIZES[-1])
        most = self._room.working // 2 // self._decoder.bytes_of_logits
        fitting = [
            size
            for size in _SIZES
            if size <= min(wanted, max(most, _SIZES[0]))
            and arena_bytes(self._decoder, rows=size, capacity=capacity) <= self._room.rows
        ]
        if not fitting:
            needed = arena_bytes(self._decoder, rows=_SIZES[0], capacity=capacity)
            raise DeviceBusy(
                f"{_SIZES[0]} rows of {capacity} tokens take {needed / 1e9:.1f} GB, "
                f"grading's share leaves {self._room.rows / 1e9:.1f} GB for them"
            )
        return fitting[-1]


class Batch:
    """The rows that are being answered at one time."""

    def __init__(
        self,
        static: StaticDecoder,
        requests: Sequence[Asked],
        *,
        sampler: Sampler,
        stops: Stops,
        decoder: Decoder,
        prefill_tokens: int,
    ) -> None:
        self._prefill_tokens = prefill_tokens
        self._static, self._sampler, self._stops = static, sampler, stops
        self._waiting = list(reversed(requests))
        self._rows: dict[int, _Row] = {}
        """By slot."""
        self._used = static.arena.rows
        """Slots that steps run over."""
        self._seen = decoder.blank_marks(self._used) if sampler.penalizes else None
        self._told = torch.zeros((STEPS, self._used), dtype=torch.long, device=static.arena.tokens.device)

    def run(self) -> Iterator[Answered]:
        """Answers as they are complete."""
        while self._waiting or self._rows:
            yield from self._refill()
            self._shrink()
            if self._rows:
                yield from self._advance()

    # --- rows come

    def _refill(self) -> Iterator[Answered]:
        """Fill free slots with waiting prompts and choose the first token of each."""
        while self._waiting and len(self._rows) < self._used:
            free = [slot for slot in range(self._used) if slot not in self._rows]
            group = self._next_group(len(free))
            slots = free[: len(group)]
            logits = self._static.prefill([asked.tokens for asked in group], slots)
            self._rows.update({slot: _Row(asked) for slot, asked in zip(slots, group, strict=True)})
            self._mark_prompts(slots)
            chosen = self._choose(logits, slots)
            places = torch.tensor(slots, device=chosen.device)
            self._static.arena.tokens[places] = chosen
            yield from self._take({slot: [token] for slot, token in zip(slots, chosen.tolist(), strict=True)})

    def _next_group(self, free: int) -> list[Asked]:
        group: list[Asked] = []
        width = 0
        while self._waiting and len(group) < free:
            width = max(width, len(self._waiting[-1].tokens))
            if group and width * (len(group) + 1) > self._prefill_tokens:
                break
            group.append(self._waiting.pop())
        return group

    # --- rows go on

    def _advance(self) -> Iterator[Answered]:
        """Steps for every row, then a look at what they wrote."""
        steps = min(STEPS, max(row.left for row in self._rows.values()))
        arena = self._static.arena
        for step in range(steps):
            self._static.step(self._used)
            if not (self._sampler.greedy and self._seen is None):
                self._choose_all()
            self._told[step, : self._used] = arena.tokens[: self._used]
        told = self._told[:steps, : self._used].T.tolist()
        yield from self._take({slot: told[slot] for slot in list(self._rows)})

    def _choose_all(self) -> None:
        """By the sampler, which draws for every row by its own generator."""
        slots = sorted(self._rows)
        places = torch.tensor(slots, device=self._told.device)
        logits = self._static.logits[self._used][places]
        self._static.arena.tokens[places] = self._choose(logits, slots)

    def _choose(self, logits: torch.Tensor, slots: Sequence[int]) -> torch.Tensor:
        places = torch.tensor(slots, device=logits.device)
        seen = None if self._seen is None else self._seen[places]
        generators = [self._rows[slot].asked.generator for slot in slots]
        chosen = self._sampler.choose(logits, seen=seen, generators=generators)
        if self._seen is not None:
            self._seen[places, chosen] = True
        return chosen

    def _mark_prompts(self, slots: Sequence[int]) -> None:
        if self._seen is not None:
            for slot in slots:
                self._seen[slot] = False
                self._seen[slot, list(self._rows[slot].asked.tokens)] = True

    # --- rows end

    def _take(self, told: dict[int, list[int]]) -> Iterator[Answered]:
        """Append tokens to their rows; rows that end leave their slots."""
        for slot, tokens in told.items():
            row = self._rows[slot]
            output = self._append(row, tokens)
            if output is not None:
                del self._rows[slot]
                yield Answered(row.asked.index, output)

    def _append(self, row: _Row, tokens: Sequence[int]) -> Output | None:
        """The row's answer if one of `tokens` completes it; those behind it were written in vain."""
        stops = self._stops
        one_by_one = stops.may_be_found(row.tokens, tokens)
        for token in tokens:
            end = stops.is_end(token)
            if not end:
                row.tokens.append(token)
                end = one_by_one and stops.found(row.tokens)
            if end or row.left <= 0:
                return Output(text=stops.text(row.tokens), tokens=len(row.tokens), cut=not end)
        return None

    def _shrink(self) -> None:
        """With nothing left to refill, fewer rows take a smaller graph."""
        if self._waiting or not self._rows:
            return
        size = min(size for size in _SIZES if size >= len(self._rows))
        if size >= self._used:
            return
        free = [slot for slot in range(size) if slot not in self._rows]
        sources = sorted(slot for slot in self._rows if slot >= size)
        targets = free[: len(sources)]
        if sources:
            self._static.arena.move(sources, targets)
        for source, target in zip(sources, targets, strict=True):
            self._rows[target] = self._rows.pop(source)
            if self._seen is not None:
                self._seen[target] = self._seen[source]
        self._used = size
