"""What one decoding step does between its matrix products, a Triton kernel for each.

Run one by one, these operations are two thirds of the launches of a step and read and write the same few
rows again and again. The attention kernel reads the tokens that a row has, and none of the padding.
Numbers are worked out in fp32 and rounded where transformers rounds.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_KEYS, _WARPS, _STAGES = 32, 1, 2
"""Keys that one step of the attention loop looks at, threads of 32 that do, steps that are read ahead."""
_SMALLEST = 16
"""What a matrix product of Triton takes at least, in each direction."""
_COLUMNS = 1024
_SILU = ("SiLU", "SiLUActivation")


@triton.jit
def _add_norm(hidden, delta, weight, out, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    place = row * size + columns
    states = tl.load(hidden + place, mask=inside, other=0.0)
    if ADD:
        added = tl.load(delta + place, mask=inside, other=0.0)
        states = (states.to(tl.float32) + added.to(tl.float32)).to(states.dtype)
        tl.store(hidden + place, states, mask=inside)
    exact = states.to(tl.float32)
    normed = exact / tl.sqrt(tl.sum(exact * exact, axis=0) / size + eps)
    scale = tl.load(weight + columns, mask=inside, other=0.0)
    result = normed.to(states.dtype).to(tl.float32) * scale.to(tl.float32)
    tl.store(out + place, result.to(states.dtype), mask=inside)


@triton.jit
def _turn(
    mixed, cos, sin, keys, values, rows, positions, norm_q, norm_k, eps, capacity,
    NORM: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    columns = tl.arange(0, HALF)
    inside = columns < DIM // 2
    begin = mixed + (token * (HEADS + 2 * KV) + head) * DIM
    left = tl.load(begin + columns, mask=inside, other=0.0)
    right = tl.load(begin + DIM // 2 + columns, mask=inside, other=0.0)
    position = tl.load(positions + token).to(tl.int64)
    if head < HEADS + KV:
        one, two = left.to(tl.float32), right.to(tl.float32)
        if NORM:
            mean = (tl.sum(one * one, axis=0) + tl.sum(two * two, axis=0)) / DIM
            weight = norm_q
            if head >= HEADS:
                weight = norm_k
            factor = 1.0 / tl.sqrt(mean + eps)
            scale_one = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
            scale_two = tl.load(weight + DIM // 2 + columns, mask=inside, other=0.0).to(tl.float32)
            one = ((one * factor).to(left.dtype).to(tl.float32) * scale_one).to(left.dtype).to(tl.float32)
            two = ((two * factor).to(left.dtype).to(tl.float32) * scale_two).to(left.dtype).to(tl.float32)
        table = position * DIM + columns
        cos_one = tl.load(cos + table, mask=inside, other=0.0).to(tl.float32)
        cos_two = tl.load(cos + table + DIM // 2, mask=inside, other=0.0).to(tl.float32)
        sin_one = tl.load(sin + table, mask=inside, other=0.0).to(tl.float32)
        sin_two = tl.load(sin + table + DIM // 2, mask=inside, other=0.0).to(tl.float32)
        left = (one * cos_one - two * sin_one).to(left.dtype)
        right = (two * cos_two + one * sin_two).to(right.dtype)
        tl.store(begin + columns, left, mask=inside)
        tl.store(begin + DIM // 2 + columns, right, mask=inside)
    row = tl.load(rows + token).to(tl.int64)
    if head >= HEADS + KV:
        slot = ((row * KV + (head - HEADS - KV)) * capacity + position) * DIM
        tl.store(values + slot + columns, left, mask=inside)
        tl.store(values + slot + DIM // 2 + columns, right, mask=inside)
    elif head >= HEADS:
        slot = ((row * KV + (head - HEADS)) * capacity + position) * DIM
        tl.store(keys + slot + columns, left, mask=inside)
        tl.store(keys + slot + DIM // 2 + columns, right, mask=inside)


@triton.jit
def _attend(
    mixed, keys, values, out, positions, scale, capacity,
    HEADS: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(positions + row) + 1
    queries, columns = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    wanted = (queries < GROUP)[:, None] & (columns < DIM)[None, :]
    query_place = (head * GROUP + queries)[:, None] * DIM + columns[None, :]
    query = tl.load(mixed + row * (HEADS + 2 * KV) * DIM + query_place, mask=wanted, other=0.0)
    begin = (row * KV + head) * capacity * DIM
    most = tl.full([QUERIES], float("-inf"), tl.float32)
    weight = tl.zeros([QUERIES], tl.float32)
    mean = tl.zeros([QUERIES, WIDTH], tl.float32)
    for start in range(0, length, BLOCK):
        places = start + tl.arange(0, BLOCK)
        there = places < length
        read = begin + places[:, None] * DIM + columns[None, :]
        mask = there[:, None] & (columns < DIM)[None, :]
        key = tl.load(keys + read, mask=mask, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        new = tl.maximum(most, tl.max(scores, axis=1))
        shares = tl.exp(scores - new[:, None])
        shrink = tl.exp(most - new)
        weight = weight * shrink + tl.sum(shares, axis=1)
        value = tl.load(values + read, mask=mask, other=0.0)
        mean = mean * shrink[:, None] + tl.dot(shares.to(value.dtype), value, input_precision=PRECISION)
        most = new
    result = mean / weight[:, None]
    tl.store(out + row * HEADS * DIM + query_place, result.to(query.dtype), mask=wanted)


@triton.jit
def _gate(mixed, out, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gate = tl.load(mixed + row * 2 * size + columns, mask=inside, other=0.0)
    up = tl.load(mixed + row * 2 * size + size + columns, mask=inside, other=0.0)
    exact = gate.to(tl.float32)
    open_ = (exact / (1.0 + tl.exp(-exact))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * size + columns, (open_ * up.to(tl.float32)).to(gate.dtype), mask=inside)


class TritonOps:
    """The operations of `static_ops.Ops` by the kernels above."""

    def add_norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, norm: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, size = hidden.shape
        out = torch.empty_like(hidden)
        _add_norm[(count,)](
            hidden, hidden if delta is None else delta, norm.weight, out, size, norm.variance_epsilon,
            ADD=delta is not None, BLOCK=triton.next_power_of_2(size),
        )  # fmt: skip
        return hidden, out

    def turn(
        self,
        mixed: torch.Tensor,
        layer: Any,
        *,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
    ) -> None:
        count, heads, dim = mixed.shape
        kv, capacity = keys.shape[1], keys.shape[2]
        normed = layer.norm_q is not None
        _turn[(count, heads)](
            mixed, cos, sin, keys, values, rows, positions,
            layer.norm_q.weight if normed else mixed, layer.norm_k.weight if normed else mixed,
            layer.norm_q.variance_epsilon if normed else 0.0, capacity,
            NORM=normed, HEADS=heads - 2 * kv, KV=kv, DIM=dim, HALF=triton.next_power_of_2(dim // 2),
            num_warps=1,
        )  # fmt: skip

    def attend(
        self, mixed: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        count, heads, dim = mixed.shape
        kv, capacity = keys.shape[1], keys.shape[2]
        heads -= 2 * kv
        out = torch.empty((count, heads * dim), dtype=mixed.dtype, device=mixed.device)
        group = heads // kv
        _attend[(count, kv)](
            mixed, keys, values, out, positions, dim**-0.5, capacity,
            HEADS=heads, KV=kv, GROUP=group, QUERIES=max(_SMALLEST, triton.next_power_of_2(group)),
            DIM=dim, WIDTH=max(_SMALLEST, triton.next_power_of_2(dim)), BLOCK=_KEYS,
            PRECISION="ieee" if mixed.dtype == torch.float32 else "tf32",
            num_warps=_WARPS, num_stages=_STAGES,
        )  # fmt: skip
        return out

    def gate(self, mixed: torch.Tensor, layer: Any) -> torch.Tensor:
        count, size = mixed.shape[0], mixed.shape[1] // 2
        if type(layer.activation).__name__ not in _SILU:
            return layer.activation(mixed[:, :size]) * mixed[:, size:]
        out = torch.empty((count, size), dtype=mixed.dtype, device=mixed.device)
        _gate[(count, triton.cdiv(size, _COLUMNS))](mixed, out, size, BLOCK=_COLUMNS)
        return out
