"""Whether the weights that vLLM computes with are the ones it was given, looked up in its own model.

vLLM keeps some matrices of a checkpoint as one (query, key and value; gate and up), pads vocabularies, and
on processors computes some products from a packed copy alone. Each form is held against the tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from posttrain.core.errors import InfrastructureError

_PROBE_ROWS = 4
_PROBE_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
_Tensors = Mapping[str, torch.Tensor]


def blank(model: Any) -> None:
    """Fill every parameter with NaN, so that nothing of an earlier checkpoint can pass for a later one's."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.fill_(torch.nan)


def check_weights(model: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise InfrastructureError unless `model` holds `tensors`, which have a checkpoint's names.

    Parameters of the same name, or merged from several by the model's own table, are compared element by
    element; any other must be free of the NaN that `blank` left.
    """
    given = dict(tensors)
    merged = getattr(model, "packed_modules_mapping", None) or {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and not _agrees(parameter, _pieces(name, given, merged)):
                raise InfrastructureError(f"vLLM holds other weights than the checkpoint's: {name}")
        for name, module in model.named_modules():
            pieces = _pieces(f"{name}.weight", given, merged)
            if hasattr(module, "cpu_linear") and pieces and not _answers_as(module, pieces):
                raise InfrastructureError(f"vLLM computes with other weights than the checkpoint's: {name}")


def buffers_digest(model: Any) -> str:
    """One value for all buffers, which no checkpoint may change."""
    digest = hashlib.sha256()
    for name, buffer in model.named_buffers():
        digest.update(name.encode())
        digest.update(buffer.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _pieces(name: str, given: _Tensors, merged: Mapping[str, Sequence[str]]) -> list[torch.Tensor]:
    """The checkpoint's tensors that stand one below the other in this parameter; empty: nobody says which."""
    if name in given:
        return [given[name]]
    module, _, parameter = name.rpartition(".")
    parent, _, last = module.rpartition(".")
    names = [f"{parent}.{part}.{parameter}" for part in merged.get(last, ())]
    return [given[part] for part in names] if names and all(part in given for part in names) else []


def _agrees(parameter: torch.Tensor, pieces: Sequence[torch.Tensor]) -> bool:
    if not parameter.numel():
        return True  # computed from a packed copy, which is asked instead
    if not pieces:
        return bool(torch.isfinite(parameter).all())
    return all(torch.equal(*pair) for pair in _pairs(parameter, pieces))


def _pairs(
    parameter: torch.Tensor, pieces: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each piece beside the rows it should fill; what is left over is padding and zero."""
    begin = 0
    for piece in pieces:
        end = begin + len(piece)
        yield parameter[begin:end], piece.to(parameter.device, parameter.dtype)
        begin = end
    yield parameter[begin:], torch.zeros_like(parameter[begin:])


def _answers_as(module: Any, pieces: Sequence[torch.Tensor]) -> bool:
    """Whether a linear layer turns a fixed random input into what these matrices make of it."""
    matrix = torch.cat([piece.float() for piece in pieces])
    source = torch.Generator().manual_seed(0)
    rows = torch.randn((_PROBE_ROWS, matrix.shape[1]), generator=source).to(pieces[0].dtype)
    answer = module.quant_method.apply(module, rows)[:, : len(matrix)].float()
    wanted = rows.float() @ matrix.T
    return bool((answer - wanted).abs().max() <= _PROBE_TOLERANCE[pieces[0].dtype] * wanted.abs().max())
