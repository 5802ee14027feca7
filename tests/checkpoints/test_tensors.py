"""Only a submission's tensors count, and only if they are the base's by name, shape and finiteness."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import InfrastructureError, Rejected, Unloadable
from posttrain.core.grading import LoadReport
from posttrain.testing.tiny import Tensor, fine_tuned, read_weights, tiny_model, write_weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "m", dtype="F32")


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "m", dtype="F32", tied=False)


def model_of(folder: Path, dtype: str = "float32") -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=getattr(torch, dtype))


def load(base: Path, folder: Path, dtype: str = "float32") -> tuple[Any, LoadReport]:
    from posttrain.checkpoints.tensors import TensorTarget

    model = model_of(base, dtype)
    return model, TensorTarget(model, base).load(folder)


def altered(
    base: Path, target: Path, change: Callable[[dict[str, Tensor]], None], dtype: Any = "F32"
) -> Path:
    """A copy of `base` whose tensors went through `change`."""
    fine_tuned(base, target, scale=0.0, dtype=dtype)
    tensors = read_weights(base)
    change(tensors)
    write_weights(target, tensors, dtype=dtype)
    return target


def configured(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_fine_tune_is_taken_as_transformers_would_load_it(
    base: Path, tmp_path: Path, dtype: Any, shards: int
) -> None:
    tuned = fine_tuned(base, tmp_path / "t", scale=0.1, dtype=dtype, shards=shards)
    model, report = load(base, tuned, "bfloat16")
    expected = model_of(tuned, "bfloat16").state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert report.dtype == {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype]
    assert report.copy_of_base is False
    assert report.changed_share is not None
    assert report.changed_share > 0.9


@pytest.mark.parametrize("saved", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_copy_in_another_precision_is_still_a_copy(tmp_path: Path, dtype: Any, saved: str) -> None:
    base = tiny_model(tmp_path / "b", dtype=dtype)
    model_of(base, saved).save_pretrained(tmp_path / "t")
    _, report = load(base, tmp_path / "t")
    assert report.copy_of_base
    assert report.changed_share == 0.0


def test_one_changed_element_is_no_copy_and_is_counted(base: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        norm = tensors["model.norm.weight"]
        tensors["model.norm.weight"] = Tensor(norm.shape, [2.5, *norm.values[1:]])

    _, report = load(base, altered(base, tmp_path / "t", change))
    assert not report.copy_of_base
    assert report.changed_share == pytest.approx(1 / sum(t.numel() for t in model_of(base).parameters()))


def test_rotary_buffers_are_the_bases_and_stay_fp32(base: Path, tmp_path: Path) -> None:
    model, _ = load(base, fine_tuned(base, tmp_path / "t"), "bfloat16")
    buffer = model.model.rotary_emb.inv_freq
    assert buffer.dtype == torch.float32
    assert torch.equal(buffer, model_of(base).model.rotary_emb.inv_freq)


@pytest.mark.parametrize("buffer", [torch.ones((), dtype=torch.bfloat16), torch.zeros(0), torch.eye(2) > 0])
def test_buffers_of_any_kind_are_watched(base: Path, tmp_path: Path, buffer: torch.Tensor) -> None:
    from posttrain.checkpoints.tensors import TensorTarget

    model = model_of(base)
    model.register_buffer("extra", buffer, persistent=False)
    target = TensorTarget(model, base)
    tuned = fine_tuned(base, tmp_path / "t")
    assert not target.load(tuned).copy_of_base
    if buffer.numel():
        model.extra.zero_()
        with pytest.raises(InfrastructureError, match="buffer"):
            target.load(tuned)


def test_buffers_that_old_checkpoints_carry_are_not_taken(base: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tuned = altered(base, tmp_path / "t", lambda tensors: tensors.update({name: Tensor((8,), [9.0] * 8)}))
    model, report = load(base, tuned)
    assert report.copy_of_base
    assert torch.equal(model.model.rotary_emb.inv_freq, model_of(base).model.rotary_emb.inv_freq)


def test_missing_and_unknown_tensors_are_both_named(base: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.last.weight"] = tensors.pop("model.norm.weight")

    with pytest.raises(
        Unloadable, match=r"missing \(model\.norm\.weight\).*\(model\.last\.weight\)"
    ) as raised:
        load(base, altered(base, tmp_path / "t", change))
    assert "safe_serialization=True" in raised.value.hint


def test_a_wrong_shape_is_named_with_the_bases(base: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"] = Tensor((48, 2), tensors["model.norm.weight"].values)

    with pytest.raises(Unloadable, match=r"model\.norm\.weight has shape \[48, 2\], the base's is \[96\]"):
        load(base, altered(base, tmp_path / "t", change))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused_by_name(base: Path, tmp_path: Path, bad: float) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        norm = tensors["model.norm.weight"]
        tensors["model.norm.weight"] = Tensor(norm.shape, [*norm.values[:-1], bad])

    with pytest.raises(Unloadable, match=r"model\.norm\.weight holds values that are not finite"):
        load(base, altered(base, tmp_path / "t", change))


def test_large_finite_values_are_no_fault(base: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"] = Tensor((96,), [3e38] * 96)

    assert not load(base, altered(base, tmp_path / "t", change))[1].copy_of_base


def test_values_that_the_plans_precision_cannot_hold_are_refused(base: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"] = Tensor((96,), [1e6] * 96)

    with pytest.raises(Unloadable, match="float16"):
        load(base, altered(base, tmp_path / "t", change), "float16")


def test_integers_are_not_taken_for_weights(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tuned = fine_tuned(base, tmp_path / "t", dtype="F32")
    tensors = load_file(tuned / "model.safetensors")
    save_file({n: t.to(torch.int32) for n, t in tensors.items()}, tuned / "model.safetensors")
    with pytest.raises(Unloadable, match="I32"):
        load(base, tuned)


def with_head(base: Path, target: Path, factor: float) -> Path:
    def change(tensors: dict[str, Tensor]) -> None:
        embedding = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = Tensor(embedding.shape, [factor * v for v in embedding.values])

    return altered(base, target, change)


def test_a_redundant_tied_head_is_dropped_and_said(base: Path, tmp_path: Path) -> None:
    model, report = load(base, with_head(base, tmp_path / "t", 1.0))
    assert report.copy_of_base
    assert "equals the embedding and is dropped" in report.repairs[-1]
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_head_of_its_own_is_used_and_said(base: Path, tmp_path: Path) -> None:
    model, report = load(base, with_head(base, tmp_path / "t", 2.0))
    assert not report.copy_of_base
    assert "differs from the embedding and is used" in report.repairs[-1]
    assert torch.equal(model.lm_head.weight, 2.0 * model.model.embed_tokens.weight)


def test_a_head_of_its_own_does_not_outlive_its_submission(base: Path, tmp_path: Path) -> None:
    from posttrain.checkpoints.tensors import TensorTarget

    model = model_of(base)
    target = TensorTarget(model, base)
    target.load(with_head(base, tmp_path / "t", 2.0))
    target.load_base()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, model_of(base).lm_head.weight)


def test_an_untied_base_needs_its_head_unless_the_config_ties_it(untied: Path, tmp_path: Path) -> None:
    tuned = altered(untied, tmp_path / "t", lambda tensors: tensors.pop("lm_head.weight") and None)
    with pytest.raises(Unloadable, match=r"lm_head\.weight"):
        load(untied, tuned)
    model, report = load(untied, configured(tuned, tie_word_embeddings=True))
    assert "tied to the embedding" in report.repairs[-1]
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_an_adapters_matrices_are_refused_with_the_way_to_merge(base: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.lora_A.weight"
    tuned = altered(base, tmp_path / "t", lambda tensors: tensors.update({name: Tensor((2,), [0.0, 0.0])}))
    with pytest.raises(Rejected) as raised:
        load(base, tuned)
    assert "merge_and_unload" in raised.value.hint


def test_what_lies_beside_complete_weights_is_ignored(base: Path, tmp_path: Path) -> None:
    tuned = fine_tuned(
        base, tmp_path / "t", files={"modeling_evil.py": "raise SystemExit", "adapter_config.json": "{"}
    )
    (tuned / "optimizer.pt").write_bytes(b"\x80\x04.")
    configured(tuned, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    _, report = load(base, tuned)
    assert "custom code named by config.json is ignored" in report.notes


def test_another_architecture_is_refused_by_the_field(base: Path, tmp_path: Path) -> None:
    tuned = fine_tuned(base, tmp_path / "t")
    with pytest.raises(Unloadable, match="model_type is 'gpt2', the base's is 'llama'"):
        load(base, configured(tuned, model_type="gpt2"))
    with pytest.raises(Unloadable, match="num_attention_heads is 3"):
        load(base, configured(tuned, model_type="llama", num_attention_heads=3))


def test_a_model_that_needs_its_own_code_is_rejected(base: Path, tmp_path: Path) -> None:
    tuned = configured(
        fine_tuned(base, tmp_path / "t"), model_type="evil", auto_map={"AutoModel": "evil.Evil"}
    )
    with pytest.raises(Rejected, match="never loaded"):
        load(base, tuned)


def test_config_fields_that_differ_are_reported_and_not_taken(base: Path, tmp_path: Path) -> None:
    tuned = configured(fine_tuned(base, tmp_path / "t"), rms_norm_eps=0.5)
    model, report = load(base, tuned)
    assert any("rms_norm_eps" in note for note in report.notes)
    assert model.config.rms_norm_eps != 0.5


def test_a_checkpoint_needs_no_config_at_all(base: Path, tmp_path: Path) -> None:
    tuned = fine_tuned(base, tmp_path / "t")
    (tuned / "config.json").unlink()
    assert "no readable config.json" in load(base, tuned)[1].notes[0]


def test_a_base_without_all_its_tensors_is_our_fault(base: Path, tmp_path: Path) -> None:
    poor = altered(base, tmp_path / "b", lambda tensors: tensors.pop("model.norm.weight") and None)
    with pytest.raises(InfrastructureError, match=r"model\.norm\.weight"):
        load(poor, base)
