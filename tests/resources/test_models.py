from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra.models import Sources, check_unchanged, list_models
from posttrain.testing.tiny import tiny_model

from .conftest import Resolver


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_mode) for path in folder.iterdir()}


def _fill(folder: Path, base: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(base, folder)
    return folder


def _other_content_same_size(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def test_a_local_folder_is_used_where_it_lies(resolve: Resolver, base: Path) -> None:
    before = _contents(base)
    model = resolve(str(base))
    assert model.folder == base
    assert model.name.startswith("local/tiny-")
    assert _contents(base) == before


def test_the_same_files_have_the_same_digest_wherever_they_lie(
    resolve: Resolver, base: Path, tmp_path: Path
) -> None:
    copy = _fill(tmp_path / "elsewhere", base)
    assert resolve(str(base)).digest == resolve(str(copy)).digest


def test_a_hub_cache_is_taken_without_its_links(resolve: Resolver, base: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "cache" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for path in base.iterdir():
        (snapshot / path.name).symlink_to(Path("../../../given/tiny") / path.name)
    before = _contents(base)
    model = resolve(str(snapshot))
    assert model.folder == resolve.lab.model(model.name)
    assert not any(path.is_symlink() for path in model.folder.iterdir())
    assert _contents(base) == before
    assert resolve(str(snapshot)) == model


def test_a_model_put_into_the_lab_home_is_taken_offline(resolve: Resolver, base: Path) -> None:
    folder = _fill(resolve.lab.model("org/tiny"), base)
    model = resolve("org/tiny")
    assert model.folder == folder
    assert resolve.lab.model_manifest("org/tiny").is_file()


def test_an_adopted_folder_stays_as_it_is_and_the_manifest_lies_with_us(
    resolve: Resolver, base: Path, tmp_path: Path
) -> None:
    source = _fill(tmp_path / "rl_files" / "models" / "org" / "tiny", base)
    before = _contents(source)
    model = resolve("org/tiny", sources=Sources(adopted=(tmp_path / "rl_files",)))
    assert model.folder == source
    assert _contents(source) == before
    assert [path.name for path in resolve.lab.model("org/tiny").iterdir()] == [".manifest.json"]


def test_an_incomplete_adopted_folder_is_passed_over_and_named(
    resolve: Resolver, base: Path, tmp_path: Path
) -> None:
    broken = _fill(tmp_path / "one" / "models" / "org" / "tiny", base)
    (broken / "model.safetensors").unlink()
    whole = _fill(tmp_path / "two" / "models" / "org" / "tiny", base)
    model = resolve("org/tiny", sources=Sources(adopted=(tmp_path / "one", tmp_path / "two")))
    assert model.folder == whole
    assert any(str(broken) in line for line in resolve.lines)


def test_a_missing_model_offline_names_the_path_to_fill_and_leaves_nothing(resolve: Resolver) -> None:
    resolve.lab.home.rmdir()
    with pytest.raises(UsageError, match="offline") as refused:
        resolve("org/absent")
    assert str(resolve.lab.model("org/absent")) in str(refused.value)
    assert not resolve.lab.home.exists()


def test_an_unknown_model_leaves_a_used_lab_home_as_it_was(resolve: Resolver, base: Path) -> None:
    resolve(str(base))
    before = sorted(resolve.lab.home.rglob("*"))
    for wrong in ("org/absent", "pypi:unknown==1", str(base.parent)):
        with pytest.raises(UsageError):
            resolve(wrong)
    assert sorted(resolve.lab.home.rglob("*")) == before


def test_a_filled_home_may_be_read_only(resolve: Resolver, base: Path) -> None:
    _fill(resolve.lab.model("org/tiny"), base)
    first = resolve("org/tiny")
    for folder in (resolve.lab.models, resolve.lab.model("org/tiny"), resolve.lab.home):
        folder.chmod(0o555)
    try:
        assert resolve("org/tiny") == first
    finally:
        for folder in (resolve.lab.home, resolve.lab.models, resolve.lab.model("org/tiny")):
            folder.chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_to_is_one_line(resolve: Resolver, base: Path) -> None:
    resolve.lab.home.chmod(0o555)
    with pytest.raises(UsageError, match="denied"):
        resolve(str(base))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "source": "x"}'])
def test_a_damaged_manifest_does_not_count_and_is_named_offline(
    resolve: Resolver, base: Path, text: str
) -> None:
    _fill(resolve.lab.model("org/tiny"), base)
    resolve.lab.model_manifest("org/tiny").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=r"\.manifest\.json is damaged"):
        resolve("org/tiny")


def test_a_changed_base_stops_the_lab_by_name(resolve: Resolver, base: Path) -> None:
    model = resolve(str(base))
    check_unchanged(model)
    _other_content_same_size(base / "model.safetensors")
    with pytest.raises(InfrastructureError, match=r"model\.safetensors has other content"):
        check_unchanged(model)
    with pytest.raises(UsageError, match=r"model\.safetensors has other content"):
        resolve(str(base))


def test_a_missing_file_of_the_base_is_named(resolve: Resolver, base: Path) -> None:
    model = resolve(str(base))
    (base / "generation_config.json").unlink()
    with pytest.raises(InfrastructureError, match=r"generation_config\.json is missing"):
        check_unchanged(model)


def test_a_file_that_a_loader_would_read_may_not_appear(resolve: Resolver, tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "m", shards=2)
    model = resolve(str(base))
    shutil.copyfile(base / "model-00001-of-00002.safetensors", base / "model.safetensors")
    with pytest.raises(InfrastructureError, match=r"model\.safetensors was not there before|is missing"):
        check_unchanged(model)


def test_a_touched_file_of_equal_content_is_no_change(resolve: Resolver, base: Path) -> None:
    model = resolve(str(base))
    os.utime(base / "config.json", ns=(1, 1))
    check_unchanged(model)
    assert resolve(str(base)).digest == model.digest


def test_a_moved_lab_home_keeps_its_models(resolve: Resolver, base: Path, tmp_path: Path) -> None:
    _fill(resolve.lab.model("org/tiny"), base)
    digest = resolve("org/tiny").digest
    moved = LabPaths(tmp_path / "moved")
    shutil.copytree(resolve.lab.home, moved.home)
    again = Resolver(moved)
    assert again("org/tiny").digest == digest
    stamped = again("org/tiny").manifest.files[0]
    assert stamped.inode == (moved.model("org/tiny") / stamped.name).stat().st_ino


def test_an_adopted_folder_that_went_away_is_looked_for_again(
    resolve: Resolver, base: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    _fill(first / "models" / "org" / "tiny", base)
    resolve("org/tiny", sources=Sources(adopted=(first,)))
    first.rename(second)
    model = resolve("org/tiny", sources=Sources(adopted=(second,)))
    assert model.folder == second / "models" / "org" / "tiny"


def test_the_list_shows_what_is_here_and_what_can_be_fetched(resolve: Resolver, base: Path) -> None:
    _fill(resolve.lab.model("org/tiny"), base)
    resolve("org/tiny")
    listed = {model.id: model for model in list_models(resolve.lab)}
    assert listed["org/tiny"].folder == resolve.lab.model("org/tiny")
    assert listed["smollm2-135m"].folder is None
