"""What safetensors files say is checked before a byte of weights is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.checkpoints.headers import Incomplete, check_complete, parse_index, read_header, read_weights
from posttrain.core.errors import Rejected, Unloadable
from posttrain.testing.tiny import tiny_model


def write(path: Path, entries: dict | bytes, data: bytes = b"") -> Path:
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def entry(start: int, end: int, shape: list, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("shards", [1, 3])
def test_a_complete_checkpoint_is_read_whole(tmp_path: Path, shards: int) -> None:
    weights = read_weights(tiny_model(tmp_path / "m", shards=shards))
    assert len(weights.files) == shards
    assert weights.tensors["model.norm.weight"].shape == (96,)
    assert weights.main_dtype() == "bfloat16"


@pytest.mark.parametrize(
    "entries",
    [
        {"a": entry(0, 8, [2]), "b": entry(4, 12, [2])},
        {"a": entry(4, 12, [2])},
        {"a": entry(0, 4, [1]), "b": entry(8, 12, [1])},
        {"a": entry(0, 12, [2])},
        {"a": entry(0, 8, [-2])},
        {"a": entry(0, 8, [True, 2])},
        {"a": entry(8, 0, [2])},
        {"a": {"dtype": "F32"}},
        {"a": 3},
        {"a": {"dtype": ["F32"], "shape": [3], "data_offsets": [0, 12]}},
        b"[" * 100_000,
        b"[]",
        b"{",
        b'{"a": 1, "a": 2}',
    ],
)
def test_a_header_that_lies_is_unloadable(tmp_path: Path, entries: dict | bytes) -> None:
    with pytest.raises(Unloadable):
        read_header(write(tmp_path / "model.safetensors", entries, b"\0" * 12))


def test_a_number_format_we_do_not_take_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unloadable, match="F4"):
        read_header(write(tmp_path / "model.safetensors", {"a": entry(0, 12, [3], "F4")}, b"\0" * 12))


@pytest.mark.parametrize("kept", [0, 4, 20, 200, -1])
def test_a_file_that_is_cut_off_is_incomplete(tmp_path: Path, kept: int) -> None:
    path = tiny_model(tmp_path / "m") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(Incomplete):
        check_complete(path.parent)


def test_bytes_after_the_last_tensor_are_refused(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m") / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(Unloadable, match="longer than"):
        check_complete(path.parent)


def test_a_missing_shard_is_incomplete_and_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(Incomplete, match="model-00002-of-00002"):
        check_complete(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ghost": "model-00001-of-00002.safetensors"}, "no file holds"),
        ({"model.norm.weight": "model-00001-of-00002.safetensors"}, "in another file"),
        ({"model.norm.weight": None}, "does not name 1 tensors"),
    ],
)
def test_where_index_and_files_disagree_the_files_count(tmp_path: Path, change: dict, said: str) -> None:
    folder = tiny_model(tmp_path / "m", shards=2)
    whole = read_weights(folder)
    path = folder / "model.safetensors.index.json"
    changed = {**json.loads(path.read_text())["weight_map"], **change}
    path.write_text(json.dumps({"weight_map": {name: file for name, file in changed.items() if file}}))
    found = read_weights(folder)
    assert found.tensors == whole.tensors
    assert any(said in repair for repair in found.repairs)


def test_whole_shards_need_no_index(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", shards=3)
    whole = read_weights(folder)
    (folder / "model.safetensors.index.json").unlink()
    found = read_weights(folder)
    assert found.tensors == whole.tensors
    assert "is missing" in found.repairs[0]
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(Incomplete, match="2 of 3 shards"):
        read_weights(folder)


def test_an_index_of_something_else_than_weights_is_unloadable(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "other"}}')
    with pytest.raises(Unloadable):
        check_complete(folder)


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(Unloadable, match="git-lfs"):
        check_complete(tmp_path)


@pytest.mark.parametrize("file", ["../x.safetensors", "/etc/x.safetensors", "x.bin", 3])
def test_an_index_leads_nowhere_else(file: object) -> None:
    with pytest.raises(Unloadable):
        parse_index(json.dumps({"weight_map": {"a": file}}).encode())


@pytest.mark.parametrize(
    ("files", "error", "said"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], Rejected, "merge_and_unload"),
        (["pytorch_model.bin", "config.json"], Rejected, "safe_serialization=True"),
        (["training_args.bin", "optimizer.pt"], Unloadable, "safe_serialization=True"),
        (["a.safetensors", "b.safetensors"], Unloadable, "safe_serialization=True"),
        ([], Unloadable, "safe_serialization=True"),
    ],
)
def test_a_folder_without_weights_says_what_to_do(
    tmp_path: Path, files: list[str], error: type, said: str
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(error) as raised:
        check_complete(tmp_path)
    assert said in raised.value.hint
