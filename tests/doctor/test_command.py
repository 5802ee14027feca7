"""`posttrain doctor` and `posttrain provenance` as people call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from checkpoint_variants import EMBEDDING, both, changed, edited, renamed
from honest_checkpoints import mixed
from posttrain.cli.main import execute
from posttrain.core.paths import LabPaths
from posttrain.testing.tiny import fine_tuned, tiny_model


@pytest.fixture
def home(lab: LabPaths, monkeypatch: pytest.MonkeyPatch) -> LabPaths:
    monkeypatch.setenv("POSTTRAIN_HOME", str(lab.home))
    return lab


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "base")


def test_a_mended_copy_is_free_of_what_was_found(
    home: LabPaths, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fine_tuned(base, tmp_path / "t")
    both(renamed(lambda name: f"module.{name}"), edited("generation_config.json", temperature=1.7))(
        folder, base
    )
    asked = ["doctor", str(folder), "--base", str(base)]
    assert execute(asked) == 1
    assert "--fix OUT" in capsys.readouterr().out
    assert execute([*asked, "--fix", str(tmp_path / "mended"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"tensors", "generation.sampling"} <= {finding["code"] for finding in told["findings"]}
    assert "model.safetensors" in told["files"]
    assert execute(["doctor", str(tmp_path / "mended"), "--base", str(base)]) == 0
    assert "no faults" in capsys.readouterr().out


def test_what_cannot_be_mended_gets_no_copy(home: LabPaths, base: Path, tmp_path: Path) -> None:
    folder = fine_tuned(base, tmp_path / "t")
    changed(lambda values: values[EMBEDDING].fill_(float("nan")))(folder, base)
    assert execute(["doctor", str(folder), "--base", str(base), "--fix", str(tmp_path / "mended")]) == 1
    assert not (tmp_path / "mended").exists()


@pytest.mark.parametrize("target", ["t/inner", "t"])
def test_a_copy_never_goes_into_the_folder_or_over_one(
    home: LabPaths, base: Path, tmp_path: Path, target: str
) -> None:
    folder = fine_tuned(base, tmp_path / "t")
    before = sorted(path.name for path in folder.iterdir())
    assert execute(["doctor", str(folder), "--base", str(base), "--fix", str(tmp_path / target)]) == 2
    assert sorted(path.name for path in folder.iterdir()) == before


def test_without_a_base_values_are_read_all_the_same(
    home: LabPaths, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fine_tuned(base, tmp_path / "t")
    assert execute(["doctor", str(folder)]) == 0
    changed(lambda values: values["model.norm.weight"].fill_(float("inf")))(folder, base)
    assert execute(["doctor", str(folder)]) == 1
    assert "model.norm.weight" in capsys.readouterr().out


def test_provenance_prints_numbers_and_flags_a_merge(
    home: LabPaths, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = fine_tuned(base, tmp_path / "instruct", seed=3)
    home.models.mkdir()
    home.siblings.write_text(f"{base}:\n- {{name: instruct, folder: {other}}}\n")
    merge = mixed(base, other, tmp_path / "merge", 0.5)
    assert execute(["provenance", str(merge), "--base", str(base), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["flags"] == ["merge_of:instruct"]
    assert told["siblings"][0]["coefficient"] == pytest.approx(0.5, abs=0.02)
    assert execute(["provenance", str(other), "--base", str(base)]) == 1
    assert "is(instruct)" in capsys.readouterr().out
    assert execute(["provenance", str(base), "--base", str(base)]) == 0
    assert "copy_of_base" in capsys.readouterr().out
    assert execute(["provenance", str(tmp_path / "none"), "--base", str(base)]) == 2
