"""Whether an engine's own parameters are a checkpoint's: merged matrices, padding, packed copies."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.core.errors import InfrastructureError

torch = pytest.importorskip("torch")

from posttrain.engines.vllm_weights import blank, buffers_digest, check_weights  # noqa: E402

Q, K, V = "layer.q_proj.weight", "layer.k_proj.weight", "layer.v_proj.weight"


class Linear(torch.nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(rows, columns), requires_grad=False)


class Packed(Linear):
    """A layer that computes from a copy of its matrix and has given the matrix away."""

    def pack(self, matrix: Any) -> None:
        self.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
        self.cpu_linear = lambda rows: rows @ matrix.T
        self.quant_method = self

    def apply(self, module: Any, rows: Any) -> Any:
        return module.cpu_linear(rows)


class Model(torch.nn.Module):
    """The forms that vLLM's models have: one matrix for three, a padded vocabulary, a norm, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
        self.embed = Linear(8, 4)
        self.layer = torch.nn.Module()
        self.layer.qkv_proj = Linear(8, 4)
        self.layer.own_name = Linear(2, 4)
        self.register_buffer("table", torch.arange(3.0))


def checkpoint(seed: int) -> dict[str, Any]:
    source = torch.Generator().manual_seed(seed)
    sizes = {"embed.weight": 5, Q: 4, K: 2, V: 2}
    return {name: torch.randn(rows, 4, generator=source) for name, rows in sizes.items()}


def filled(tensors: dict[str, Any]) -> Model:
    model = Model()
    model.embed.weight[:5] = tensors["embed.weight"]
    model.layer.qkv_proj.weight.copy_(torch.cat([tensors[Q], tensors[K], tensors[V]]))
    return model


def test_the_checkpoint_s_own_weights_pass() -> None:
    check_weights(filled(checkpoint(1)), checkpoint(1).items())


@pytest.mark.parametrize("stale", ["embed.weight", Q, K, V])
def test_one_tensor_of_another_checkpoint_is_found(stale: str) -> None:
    model = filled(checkpoint(1) | {stale: checkpoint(2)[stale]})
    with pytest.raises(InfrastructureError, match="other weights than the checkpoint's"):
        check_weights(model, checkpoint(1).items())


def test_padding_that_is_not_zero_is_found() -> None:
    model = filled(checkpoint(1))
    model.embed.weight[7] = 1.0
    with pytest.raises(InfrastructureError, match=r"embed\.weight"):
        check_weights(model, checkpoint(1).items())


def test_a_parameter_that_nobody_filled_is_found_by_the_blank_it_was_left_with() -> None:
    model = filled(checkpoint(1))
    blank(model.layer.own_name)
    with pytest.raises(InfrastructureError, match="own_name"):
        check_weights(model, checkpoint(1).items())


def test_a_layer_without_its_matrix_is_asked_what_it_computes() -> None:
    model = filled(checkpoint(1))
    model.layer.qkv_proj = Packed(8, 4)
    model.layer.qkv_proj.pack(torch.cat([checkpoint(1)[name] for name in (Q, K, V)]))
    check_weights(model, checkpoint(1).items())
    model.layer.qkv_proj.pack(torch.cat([checkpoint(2)[name] for name in (Q, K, V)]))
    with pytest.raises(InfrastructureError, match="computes with other weights"):
        check_weights(model, checkpoint(1).items())


def test_a_changed_buffer_changes_the_digest() -> None:
    model = filled(checkpoint(1))
    before = buffers_digest(model)
    assert buffers_digest(filled(checkpoint(2))) == before
    model.table[0] = 5.0
    assert buffers_digest(model) != before
