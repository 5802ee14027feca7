"""Kernels give the numbers of the plain operations, on a GPU.

Without one they can be interpreted, in fp32: `TRITON_INTERPRET=1 pytest -m gpu` on this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]

CHECK = """
import copy, types
import torch
from posttrain.engines.kernels import TritonOps
from posttrain.engines.static_ops import PlainOps

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Norm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.rand(size, device=device) + 0.5
        self.variance_epsilon = 1e-5

    def forward(self, hidden):
        exact = hidden.float()
        normed = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight.to(hidden.dtype) * normed.to(hidden.dtype)


def close(one, other, dtype):
    bound = 2e-5 if dtype == torch.float32 else 2e-2
    error = (one.float() - other.float()).norm() / other.float().norm()
    assert error < bound, (dtype, float(error))


plain, fused = PlainOps(), TritonOps()
for dtype in (torch.float32, torch.bfloat16) if device == "cuda" else (torch.float32,):
    for heads, kv, dim in ((9, 3, 64), (14, 2, 64), (4, 4, 16), (6, 2, 80)):
        rows, capacity, size = 5, 192, heads * dim
        kind = {"dtype": dtype, "device": device}
        norm = Norm(size)
        norm.weight = norm.weight.to(dtype)
        hidden, delta = torch.randn(rows, size, **kind), torch.randn(rows, size, **kind)
        for added in (None, delta):
            results = [ops.add_norm(hidden.clone(), added, norm) for ops in (fused, plain)]
            for one, other in zip(*results):
                close(one, other, dtype)
        for normed in (False, True):
            layer = types.SimpleNamespace(norm_q=None, norm_k=None, activation=torch.nn.SiLU())
            if normed:
                layer.norm_q, layer.norm_k = Norm(dim), Norm(dim)
                for head_norm in (layer.norm_q, layer.norm_k):
                    head_norm.weight = head_norm.weight.to(dtype)
            mixed = torch.randn(rows, heads + 2 * kv, dim, **kind)
            angles = torch.rand(capacity, dim // 2, device=device).repeat(1, 2) * 6
            tables = {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}
            positions = torch.tensor([0, 1, 63, 64, 180], dtype=torch.int32, device=device)
            numbers = torch.tensor([0, 1, 2, 3, 4], dtype=torch.int32, device=device)
            stored = [torch.randn(rows, kv, capacity, dim, **kind) for _ in range(2)]
            results = []
            for ops in (fused, plain):
                mine, keys, values = mixed.clone(), stored[0].clone(), stored[1].clone()
                ops.turn(mine, layer, **tables, keys=keys, values=values, rows=numbers, positions=positions)
                results.append((mine, keys, values, ops.attend(mine, keys, values, positions)))
            for one, other in zip(*results):
                close(one, other, dtype)
        wide = torch.randn(rows, 2 * 1536, **kind)
        close(fused.gate(wide, layer), plain.gate(wide, layer), dtype)
print("equal")
"""


def test_kernels_give_the_numbers_of_the_plain_operations() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.stdout.strip() == "equal", done.stderr[-3000:]
