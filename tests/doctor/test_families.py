"""What only some families of models have: padded vocabularies, processors, nested configs, untied heads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from checkpoint_variants import EMBEDDING, changed, edited, renamed, save, tensors  # noqa: E402
from posttrain.checkpoints.doctor import examine, write_copy  # noqa: E402
from posttrain.checkpoints.tensors import TensorTarget  # noqa: E402
from posttrain.core.errors import Unloadable  # noqa: E402
from posttrain.testing.tiny import VOCABULARY, fine_tuned, tiny_model  # noqa: E402


def load(base: Path, folder: Path):
    model = transformers.AutoModelForCausalLM.from_pretrained(str(base), dtype=torch.float32)
    return model, TensorTarget(model, base).load(folder)


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    """A base whose vocabulary has rows that no token of its tokenizer has, as Qwen's."""
    base = tiny_model(tmp_path / "base")
    values = tensors(base)
    values[EMBEDDING] = torch.cat([values[EMBEDDING], torch.full((13, 96), 0.01, dtype=torch.bfloat16)])
    save(base, values)
    edited("config.json", vocab_size=VOCABULARY + 13)(base, base)
    return base


@pytest.mark.parametrize("rows", [VOCABULARY, VOCABULARY + 5])
def test_rows_that_no_token_has_may_be_missing(padded: Path, tmp_path: Path, rows: int) -> None:
    tuned = fine_tuned(padded, tmp_path / "t")
    whole = tensors(tuned)[EMBEDDING]
    changed(lambda values: values.update({EMBEDDING: values[EMBEDDING][:rows]}))(tuned, padded)
    model, report = load(padded, tuned)
    assert "stay the base's" in report.repairs[0]
    taken = model.get_input_embeddings().weight
    assert torch.equal(taken[:rows], whole[:rows].float())
    assert torch.equal(taken[rows:], tensors(padded)[EMBEDDING][rows:].float())
    examination = examine(tuned, padded)
    write_copy(examination, tmp_path / "mended")
    assert tensors(tmp_path / "mended")[EMBEDDING].shape == (VOCABULARY + 13, 96)
    assert examine(tmp_path / "mended", padded).faults == ()


def test_rows_of_tokens_may_not_be_missing(padded: Path, tmp_path: Path) -> None:
    tuned = fine_tuned(padded, tmp_path / "t")
    changed(lambda values: values.update({EMBEDDING: values[EMBEDDING][:200]}))(tuned, padded)
    with pytest.raises(Unloadable, match=r"has shape \[200, 96\]"):
        load(padded, tuned)


def test_a_lost_processor_is_named_and_brought_back(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    (base / "preprocessor_config.json").write_text('{"size": 4}')
    tuned = fine_tuned(base, tmp_path / "t")
    (tuned / "preprocessor_config.json").unlink()
    examination = examine(tuned, base)
    assert "processor" in {fault.code for fault in examination.faults}
    write_copy(examination, tmp_path / "mended")
    assert (tmp_path / "mended/preprocessor_config.json").read_text() == '{"size": 4}'


def test_a_multimodal_wrapper_of_the_base_is_looked_through(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    tuned = fine_tuned(base, tmp_path / "t")
    inner = json.loads((tuned / "config.json").read_text())
    (tuned / "config.json").write_text(json.dumps({"model_type": "wrapper", "text_config": inner}))
    renamed(lambda name: f"model.language_model.{name.removeprefix('model.')}")(tuned, base)
    changed(lambda values: values.update({"model.visual.patch.weight": torch.ones(3, 3)}))(tuned, base)
    _, report = load(base, tuned)
    assert any("renamed" in repair for repair in report.repairs)
    assert any("only training needs" in repair for repair in report.repairs)


def test_an_untied_head_that_is_missing_is_never_guessed(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", tied=False)
    tuned = fine_tuned(base, tmp_path / "t")
    changed(lambda values: values.pop("lm_head.weight"))(tuned, base)
    with pytest.raises(Unloadable, match=r"lm_head\.weight"):
        load(base, tuned)
    assert examine(tuned, base).incurable


def test_two_tensors_for_one_place_are_refused(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    tuned = fine_tuned(base, tmp_path / "t")
    changed(lambda values: values.update({"module.model.norm.weight": torch.ones(96)}))(tuned, base)
    with pytest.raises(Unloadable, match="are both"):
        load(base, tuned)


def test_large_copies_are_written_in_shards_that_read_back(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    tuned = fine_tuned(base, tmp_path / "t")
    write_copy(examine(tuned, base), tmp_path / "mended", shard_bytes=100_000)
    assert len(list((tmp_path / "mended").glob("model-*.safetensors"))) > 1
    shutil.copytree(tmp_path / "mended", tmp_path / "again")
    assert load(base, tmp_path / "again")[1].repairs == ()
