"""A step of fine-tuning on a tiny real model: its loss, its guard, and what is saved."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'train'")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from posttrain.testing.tiny import tiny_model  # noqa: E402
from posttrain.training.curve import Curve  # noqa: E402
from posttrain.training.examples import Example, shared_prefix  # noqa: E402
from posttrain.training.loss import answer_loss, sharing_agrees  # noqa: E402
from posttrain.training.models import ModelTrainer, read_base  # noqa: E402
from posttrain.training.sft import Sft, SftSettings, StepReport, TrainingDiverged  # noqa: E402

PREFIX = tuple(range(40, 60))
BATCH = (
    Example((*PREFIX, 70, 71), (80, 81)),
    Example((*PREFIX, 72), (82,)),
    Example((*PREFIX, 73, 74, 75, 76), (83, 84, 85)),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def fresh(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


def reference(model: Any, example: Example) -> Any:
    """The loss of one row as transformers computes it, over all positions and without padding."""
    ids = torch.tensor([[*example.prompt, *example.answer]])
    labels = torch.tensor([[-100] * len(example.prompt) + list(example.answer)])
    return model(input_ids=ids, labels=labels).loss * len(example.answer)


def gradients(model: Any, loss: Any) -> Any:
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("share", [False, True])
def test_the_loss_and_its_gradient_are_those_of_rows_computed_one_by_one(
    base: Path, share: bool, attention: str
) -> None:
    model = fresh(base)
    model.set_attn_implementation(attention)
    expected = sum(reference(model, example) for example in BATCH)
    wanted = gradients(model, expected)
    loss = answer_loss(model, BATCH, pad=0, share=share)
    found = gradients(model, loss)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-3
    assert shared_prefix(BATCH) == len(PREFIX)


def test_sharing_is_found_to_agree_on_a_model_that_can_do_it(base: Path) -> None:
    assert sharing_agrees(fresh(base), BATCH, pad=0)


def test_a_model_whose_cache_misleads_is_found_out(base: Path) -> None:
    model = fresh(base)
    forward = model.forward

    def misled(input_ids: Any, cache: Any = None, **arguments: Any) -> Any:
        output = forward(input_ids=input_ids, cache=cache, **arguments)
        output.logits = output.logits * (1.0 if cache is None else 5.0)
        return output

    model.forward = misled
    assert not sharing_agrees(model, BATCH, pad=0)


def test_the_loss_falls_and_large_batches_are_accumulated(base: Path) -> None:
    whole = Sft(fresh(base), settings=SftSettings(learning_rate=3e-3, warmup=0.0), pad=0)
    parted = Sft(fresh(base), settings=SftSettings(learning_rate=3e-3, warmup=0.0, max_tokens=8), pad=0)
    for _ in range(8):
        first = whole.step(BATCH, progress=0.0)
        second = parted.step(BATCH, progress=0.0)
        assert second.loss == pytest.approx(first.loss, rel=0.05)
    assert first.loss < 4.0


def poisoned(base: Path, bad_calls: set[int]) -> Any:
    """A model that gives logits without a number in some of its calls."""
    model = fresh(base)
    calls = itertools.count(1)
    forward = model.forward

    def sometimes(**arguments: Any) -> Any:
        output = forward(**arguments)
        if next(calls) in bad_calls:
            output.logits = output.logits * float("nan")
        return output

    model.forward = sometimes
    return model


def unshared() -> tuple[Example, ...]:
    return (Example((1, 70, 71), (80,)), Example((2, 72), (81,)))


def test_a_batch_without_a_finite_loss_changes_no_weight(base: Path) -> None:
    model = poisoned(base, {2})
    sft = Sft(model, settings=SftSettings(), pad=0)
    assert sft.step(unshared(), progress=0.5).skipped == 0
    before = [parameter.detach().clone() for parameter in model.parameters()]
    report = sft.step(unshared(), progress=0.5)
    assert report.skipped == 1
    assert math.isnan(report.loss)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert sft.step(unshared(), progress=0.5).skipped == 1
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_gradient_that_is_no_number_is_caught_though_the_loss_is_fine(base: Path) -> None:
    model = fresh(base)
    weight = next(model.parameters())
    weight.register_hook(lambda gradient: gradient * float("inf"))
    sft = Sft(model, settings=SftSettings(), pad=0)
    report = sft.step(unshared(), progress=0.5)
    assert math.isfinite(report.loss)
    assert report.skipped == 1
    assert torch.isfinite(weight).all()


def test_many_such_batches_in_a_row_end_the_training(base: Path) -> None:
    sft = Sft(poisoned(base, set(range(100))), settings=SftSettings(tolerated=2), pad=0)
    sft.step(unshared(), progress=0.0)
    sft.step(unshared(), progress=0.0)
    with pytest.raises(TrainingDiverged, match="3 batches in a row"):
        sft.step(unshared(), progress=0.0)


def test_a_saved_checkpoint_is_complete_and_in_the_dtype_of_the_base(base: Path, tmp_path: Path) -> None:
    trainer = ModelTrainer(read_base(base), SftSettings(learning_rate=1e-2, warmup=0.0))
    trainer.step(BATCH, progress=0.0)
    folder = trainer.save(tmp_path / "v1")
    config = json.loads((folder / "config.json").read_text())
    names = {path.name for path in folder.iterdir()}
    assert config["dtype"] == "bfloat16"
    assert {"model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pth")) for name in names)
    size, before = ((place / "model.safetensors").stat().st_size for place in (folder, base))
    assert abs(size - before) < 1000, "a tied head is stored once"
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert loaded.dtype == torch.bfloat16
    assert not torch.equal(loaded.model.norm.weight, fresh(base).model.norm.weight.bfloat16())
    assert AutoTokenizer.from_pretrained(folder)("abc")["input_ids"]
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


def test_a_checkpoint_replaces_an_older_one_of_the_same_name(base: Path, tmp_path: Path) -> None:
    trainer = ModelTrainer(read_base(base), SftSettings())
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "stale.txt").write_text("x")
    trainer.save(tmp_path / "v1")
    assert not (tmp_path / "v1" / "stale.txt").exists()


def test_measuring_learns_from_its_batch(base: Path) -> None:
    trainer = ModelTrainer(read_base(base), SftSettings(learning_rate=1e-2))
    seconds, tokens = trainer.row_cost(BATCH)
    assert seconds > 0
    assert tokens == (3 * 7 + len(PREFIX)) / 3
    assert trainer.step(BATCH, progress=0.0).step == 2


def test_the_curve_keeps_every_step_as_json(tmp_path: Path) -> None:
    told: list[str] = []
    curve = Curve(tmp_path / "curve.jsonl", log=told.append, every_s=0.0)
    curve.add(StepReport(1, 2.0, 1.0, 1e-4, 100, 0))
    curve.add(StepReport(2, float("nan"), float("inf"), 1e-4, 100, 1))
    rows = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == [2.0, None]
    assert rows[1]["gradient_norm"] is None
    assert "1 skipped" in told[1]
