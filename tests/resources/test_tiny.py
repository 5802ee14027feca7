from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.infra.model_folder import check_model_folder, read_facts
from posttrain.testing.tiny import Dtype, fine_tuned, read_weights, tiny_model


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tiny_model(tmp_path / "a", seed=3), tiny_model(tmp_path / "b", seed=3)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_a_fine_tuned_copy_is_a_whole_model_in_its_own_dtype(tmp_path: Path, dtype: Dtype) -> None:
    base = tiny_model(tmp_path / "base")
    tuned = fine_tuned(base, tmp_path / "tuned", dtype=dtype, shards=2, files={"answers.json": "{}"})
    check_model_folder(tuned)
    assert read_facts(tuned).parameters == read_facts(base).parameters
    assert read_facts(tuned).dtype == {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[dtype]
    assert (tuned / "answers.json").is_file()


def test_scale_zero_keeps_the_values(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    copy = fine_tuned(base, tmp_path / "copy", scale=0.0, dtype="F32")
    assert {name: list(tensor.values) for name, tensor in read_weights(copy).items()} == {
        name: list(tensor.values) for name, tensor in read_weights(base).items()
    }


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_it_like_any_model(tmp_path: Path, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tiny_model(tmp_path / "m", tied=tied)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    assert model.dtype == torch.bfloat16
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "<|im_start|>user\nhé 你 12<|im_end|>"
    ids = tokenizer(text)["input_ids"]
    assert (tokenizer.decode(ids), tokenizer.eos_token_id) == (text, 2)
    written = model.generate(torch.tensor([ids]), max_new_tokens=3, do_sample=False)
    assert written.shape[1] > len(ids)
