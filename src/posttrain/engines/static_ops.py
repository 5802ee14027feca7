"""The operations of a decoding step between its matrix products, and the plain way to do them.

`kernels.TritonOps` does the same in a fifth of the launches, where Triton can be had.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Protocol

import torch

from posttrain.core.errors import InfrastructureError, boundary


class Ops(Protocol):
    """`mixed` is [tokens, heads + 2 kv heads, dim]: queries, keys and values of one layer side by side."""

    def add_norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, norm: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden + delta, possibly in place, and its norm."""
        ...

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
        """Turn queries and keys in place and put each token's key and value at its row and position.

        `keys` and `values` are [rows, kv heads, capacity, dim].
        """
        ...

    def attend(
        self, mixed: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """[rows, heads * dim]: the query of row i over what the row holds up to `positions[i]`."""
        ...

    def gate(self, mixed: torch.Tensor, layer: Any) -> torch.Tensor:
        """Activation of the first half times the second half."""
        ...


class PlainOps:
    """By torch alone, on any device."""

    def add_norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, norm: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if delta is not None:
            hidden = hidden + delta
        return hidden, norm(hidden)

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
        kv = keys.shape[1]
        turning = mixed[:, :-kv]
        if layer.norm_q is not None:
            query, key = turning[:, :-kv], turning[:, -kv:]
            turning = torch.cat((layer.norm_q(query), layer.norm_k(key)), dim=1)
        half = mixed.shape[-1] // 2
        turned = torch.cat((-turning[..., half:], turning[..., :half]), dim=-1)
        places = positions.long()
        turning = turning * cos[places][:, None] + turned * sin[places][:, None]
        mixed[:, :-kv] = turning
        keys[rows.long(), :, places] = turning[:, -kv:]
        values[rows.long(), :, places] = mixed[:, -kv:]

    def attend(
        self, mixed: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        count, dim = mixed.shape[0], mixed.shape[-1]
        kv = keys.shape[1]
        query = mixed[:, : -2 * kv].reshape(count, kv, -1, dim)
        hidden = torch.arange(keys.shape[2], device=mixed.device) > positions[:, None]
        scores = (query @ keys[:count].transpose(-1, -2)) * dim**-0.5
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        return (scores.float().softmax(dim=-1).to(mixed.dtype) @ values[:count]).reshape(count, -1)

    def gate(self, mixed: torch.Tensor, layer: Any) -> torch.Tensor:
        gate, up = mixed.chunk(2, dim=-1)
        return layer.activation(gate) * up


def best_ops(device: torch.device) -> tuple[Ops, str | None]:
    """Kernels where they can be built, else the plain way and the reason why."""
    if device.type != "cuda" or find_spec("triton") is None:
        return PlainOps(), None if device.type != "cuda" else "Triton is not installed"
    try:
        with boundary(InfrastructureError, "building Triton kernels"):
            return _proven(device), None
    except InfrastructureError as error:
        return PlainOps(), str(error)


def _proven(device: torch.device) -> Ops:
    """Kernels after one of them has run: building one takes a compiler of C as well."""
    from posttrain.engines.kernels import TritonOps

    ops = TritonOps()
    norm = torch.nn.Module()
    norm.weight, norm.variance_epsilon = torch.ones(16, device=device), 1e-6
    _, normed = ops.add_norm(torch.ones((1, 16), device=device), None, norm)
    if not torch.allclose(normed, torch.ones_like(normed), atol=1e-3):
        raise InfrastructureError("a kernel gives wrong numbers")
    return ops
