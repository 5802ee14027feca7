from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.core.errors import UsageError
from posttrain.infra.model_folder import check_model_folder, read_facts
from posttrain.testing.tiny import HIDDEN, VOCABULARY, tiny_model

Damage = Callable[[Path], None]


def _cut(name: str) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-10])


def _remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _write(name: str, text: str) -> Damage:
    return lambda folder: _replaced(folder / name, text)


def _replaced(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def _only(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / name)

    return damage


def test_a_whole_folder_passes(tmp_path: Path) -> None:
    assert "model.safetensors" in check_model_folder(tiny_model(tmp_path / "m"))


def test_training_leftovers_are_not_part_of_the_model(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    before = check_model_folder(folder)
    for name in ("optimizer.pt", "trainer_state.json", "README.md", ".hidden"):
        (folder / name).write_text("x", "utf-8")
    assert check_model_folder(folder) == before


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_remove("config.json"), "config.json is missing"),
        (_write("config.json", "{"), "config.json: not JSON"),
        (_write("config.json", "[]"), "config.json: not a JSON object"),
        (_cut("model.safetensors"), "fetch it again"),
        (_write("model.safetensors", "version https://git-lfs"), "git lfs pull"),
        (_write("model.safetensors", "short"), "not a safetensors file"),
        (_remove("model.safetensors"), "no weights"),
        (_only("pytorch_model.bin"), "save_pretrained"),
        (_only("model.gguf"), "GGUF"),
        (_write("adapter_config.json", "{}"), "merge_and_unload"),
        (_remove("tokenizer.json"), "no tokenizer"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(tmp_path: Path, damage: Damage, named: str) -> None:
    folder = tiny_model(tmp_path / "m")
    damage(folder)
    with pytest.raises(UsageError, match=named.replace(".", r"\.")):
        check_model_folder(folder)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_remove("model-00002-of-00003.safetensors"), "model-00002-of-00003.safetensors is missing"),
        (_cut("model-00003-of-00003.safetensors"), "model-00003-of-00003.safetensors: "),
        (_write("model.safetensors.index.json", "{}"), "not an index"),
        (_write("model.safetensors.index.json", '{"weight_map": {"a": "../x.safetensors"}}'), "beside it"),
    ],
)
def test_every_shard_of_the_index_is_checked(tmp_path: Path, damage: Damage, named: str) -> None:
    folder = tiny_model(tmp_path / "m", shards=3)
    damage(folder)
    with pytest.raises(UsageError, match=named):
        check_model_folder(folder)


def test_a_tensor_that_only_the_index_knows_is_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text("utf-8"))
    index["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index), "utf-8")
    with pytest.raises(UsageError, match=r"ghost\.weight"):
        check_model_folder(folder)


def test_facts_come_from_config_and_headers(tmp_path: Path) -> None:
    facts = read_facts(tiny_model(tmp_path / "m", dtype="F16", shards=2))
    assert (facts.model_type, facts.architecture, facts.dtype) == ("llama", "LlamaForCausalLM", "float16")
    assert facts.parameters == 185_088
    assert facts.max_length == 512
    assert facts.has_chat_template
    assert facts.tied


def test_a_tied_head_counts_in_the_largest_honest_size(tmp_path: Path) -> None:
    tied = read_facts(tiny_model(tmp_path / "tied"))
    untied = read_facts(tiny_model(tmp_path / "untied", tied=False))
    assert untied.parameters == tied.parameters + VOCABULARY * HIDDEN
    assert tied.untied_fp32_bytes == untied.untied_fp32_bytes == 4 * untied.parameters


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_template_is_seen_where_it_stands(tmp_path: Path, place: str) -> None:
    folder = tiny_model(tmp_path / "m", chat_template=False)
    assert not read_facts(folder).has_chat_template
    (folder / place).write_text('{"chat_template": "x"}', "utf-8")
    assert read_facts(folder).has_chat_template
