"""`fine_tune`: one call, told everything by its environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.core.engine import PinnedPrompt, PromptSettings
from posttrain.core.specs import GenerationSettings
from posttrain.testing.tiny import tiny_model

pytest.importorskip("torch")

ROWS = [{"question": f"{n} plus {n} is", "answer": str(2 * n)} for n in range(20)]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "prompt").mkdir()
    settings = PromptSettings(style="chat", template="{question}", answer_template="{answer}")
    pinned = PinnedPrompt(prompt=settings, generation=GenerationSettings(), stop_token_ids=(2,))
    (tmp_path / "prompt" / "settings.json").write_text(pinned.model_dump_json(), "utf-8")
    (tmp_path / "data").mkdir()
    rows = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "data" / "train.jsonl").write_text(rows, "utf-8")
    for name, value in {
        "WORKSPACE": tmp_path,
        "MODEL_PATH": tiny_model(tmp_path / "base"),
        "DATA_PATH": tmp_path / "data",
        "CHECKPOINT_DIR": tmp_path / "out",
        "CURVE_FILE": tmp_path / "curve.jsonl",
        "SEED": "3",
    }.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path


def steps(workspace: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (workspace / "curve.jsonl").read_text("utf-8").splitlines()]


def test_so_many_steps_are_made_and_saved(workspace: Path) -> None:
    from posttrain.training.simple import fine_tune, load_rows

    trained = fine_tune(load_rows(), batch_size=4, max_steps=5)
    assert trained.folder == workspace / "out"
    assert (trained.folder / "model.safetensors").is_file()
    assert (trained.folder / "tokenizer.json").is_file()
    assert len(steps(workspace)) == trained.steps == 5


def test_steps_repeat_exactly(workspace: Path) -> None:
    from posttrain.training.simple import fine_tune

    fine_tune(batch_size=4, max_steps=3)
    fine_tune(batch_size=4, max_steps=3)
    losses = steps(workspace)
    assert losses[:3] == losses[3:]


def test_a_dry_run_is_two_steps(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from posttrain.training.simple import fine_tune

    monkeypatch.setenv("DRY_RUN", "1")
    assert fine_tune(batch_size=4, epochs=50).steps == 2


def test_a_training_without_time_makes_a_step_and_saves(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posttrain.training.simple import fine_tune

    monkeypatch.setenv("TRAIN_SECONDS", "1")
    assert fine_tune(batch_size=4, epochs=50).steps == 1
