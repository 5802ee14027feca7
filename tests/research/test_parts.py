"""Curves, the journal, texts for the driver model, checkpoints: each by its promise."""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path

import pytest

from posttrain.core.errors import PosttrainError
from posttrain.llm.extraction import Unreadable, read_answer
from posttrain.research.curves import in_short, read_losses, why_diverged
from posttrain.research.digest import fit, journal_text, tail
from posttrain.research.journal import Journal, Steps, read_journal
from posttrain.research.nodes import Begun, Move
from posttrain.research.policy import best_of
from posttrain.research.post_training.answers import Idea, Program
from posttrain.research.post_training.execution import script_environment
from posttrain.research.post_training.handing_in import find_checkpoint
from research.nodes import node

NAN = float("nan")


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([], False),
        ([NAN] * 3, False),
        ([2.0] * 5 + [NAN] * 8, True),
        ([2.0, NAN] * 20, False),
        ([2.0, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4], False),
        ([2.0] * 5 + [2.5] * 20, False),
        ([2.0] * 5 + [9.0] * 5, True),
        ([0.8, 163.2, 1624.5] + [900.0] * 20, True),
        ([0.1] * 5 + [0.9] * 5, False),
        ([2.0] * 5 + [50.0] + [1.0] * 20, False),
        ([-1.0] * 5 + [0.5] * 5, False),
    ],
)
def test_a_lost_training_is_told_from_a_bumpy_one(losses: list[float], diverged: bool) -> None:
    assert (why_diverged(losses) is not None) is diverged


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("{'loss': 2.5, 'grad_norm': 1.0, 'epoch': 0.1}", 2.5),
        ("step 3: loss 0.81, gradient 2.0", 0.81),
        ("Epoch 1 | train_loss=1e-3", 1e-3),
        ("loss: nan", None),
        ("no numbers, no loss of face", "none"),
    ],
)
def test_losses_are_read_from_what_is_printed(tmp_path: Path, line: str, loss: float | str | None) -> None:
    log = tmp_path / "train.log"
    log.write_text(line + "\n", "utf-8")
    curve = in_short(read_losses(tmp_path / "none", log))
    assert curve.points == (0 if loss == "none" else 1)
    assert curve.last == (None if loss == "none" else loss)


def test_a_curve_file_may_hold_anything(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 2}\n\xff\xfe\n[1]\n{"loss": null}\n{"loss": "x"}\n{"loss": tr')
    assert in_short(read_losses(path, path)).model_dump()["not_finite"] == 2


def test_a_long_curve_is_kept_in_twenty_points() -> None:
    assert len(in_short([1.0] * 12_345).sampled) <= 20


def test_a_torn_last_line_is_moved_away(tmp_path: Path) -> None:
    path, torn = tmp_path / "journal.jsonl", tmp_path / "journal.torn"
    Journal(path, torn=torn).append(node(1))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"number": 2, "ki')
    journal = Journal(path, torn=torn)
    journal.append(node(2))
    assert [each.number for each in read_journal(path)] == [1, 2]
    assert '"ki' in torn.read_text("utf-8")


def test_a_line_that_does_not_fit_on_the_disk_is_no_iteration(tmp_path: Path) -> None:
    path, torn = tmp_path / "journal.jsonl", tmp_path / "journal.torn"
    journal = Journal(path, torn=torn)
    journal.append(node(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.append(node(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(journal.nodes) == 1
    journal.append(node(2))
    assert [each.number for each in read_journal(path)] == [1, 2]


def test_a_foreign_line_in_the_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"number": 0}\n', "utf-8")
    with pytest.raises(PosttrainError, match=r"journal\.jsonl:1"):
        read_journal(path)


def test_a_done_step_is_not_done_again(tmp_path: Path) -> None:
    steps = Steps(tmp_path / "n001")
    begun = Begun(move=Move(kind="draft"), started="now")
    assert steps.once("begun", Begun, lambda: begun) == begun
    assert steps.once("begun", Begun, pytest.fail) == begun


def test_the_journal_shrinks_to_lines_and_keeps_the_scores() -> None:
    nodes = [node(i, score=50 + i, kept=i == 3) for i in range(1, 60)]
    text = journal_text(nodes, best=best_of(nodes), most=8000)
    assert len(text) < 8200
    assert "score 109.0 [104.0, 114.0], improvement +59.0" in text
    whole = journal_text(nodes[:3], best=nodes[2], most=8000)
    assert "BEST SO FAR" in whole
    assert "idea: hypothesis: idea 1" in whole


def test_sections_share_the_room(tmp_path: Path) -> None:
    text = fit([("A", "a" * 10_000, 3), ("B", "short", 1), ("C", "c" * 10_000, 1), ("D", "", 5)], most=2000)
    assert len(text) < 2100
    assert "short" in text
    assert "## D" not in text
    assert text.count("a") > 2 * text.count("c")


def test_the_end_of_a_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"first\r\n" + b"x" * 100_000 + b"\r\n" + "Traceback\nKeyError: '中文'\n".encode())
    shown = tail(log)
    assert shown.endswith("KeyError: '中文'")
    assert "first" not in shown
    assert len(shown) <= 4000


def test_of_a_progress_bar_the_last_state_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"begin\n" + b"".join(b"\r%d%%|###|" % done for done in range(101)) + b"\nend\n")
    assert tail(log) == "begin\n100%|###|\nend"


@pytest.mark.parametrize(
    ("stated", "method"), [("SFT", "SFT"), ("grpo with trl", "GRPO"), ("magic", "other"), (None, "other")]
)
def test_the_label_of_a_method_is_read_kindly(stated: object, method: str) -> None:
    text = json.dumps({"hypothesis": "h", "method": stated})
    assert read_answer(Idea, text).method == method


@pytest.mark.parametrize("code", ["def f(:\n", "# nothing\n", "x = '\n"])
def test_a_script_that_is_no_python_goes_back_to_the_model(code: str) -> None:
    with pytest.raises(Unreadable, match="script is"):
        read_answer(Program, f"```python\n{code}```")


_HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)


def weights(folder: Path, *, age: float = 0.0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    path.write_bytes(WEIGHTS)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_the_newest_checkpoint_of_the_folder_is_taken(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "none") is None
    weights(tmp_path / "checkpoint-1", age=60)
    weights(tmp_path / "deep" / "checkpoint-2")
    assert find_checkpoint(tmp_path) == tmp_path / "deep" / "checkpoint-2"
    weights(tmp_path, age=600)
    assert find_checkpoint(tmp_path) == tmp_path


def test_what_is_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    weights(tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / "model.safetensors").write_bytes(WEIGHTS[:-1])
    (tmp_path / "checkpoint-3").mkdir()
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors"}}
    (tmp_path / "checkpoint-3" / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    assert find_checkpoint(tmp_path) is None
    weights(tmp_path / "checkpoint-1", age=60)
    assert find_checkpoint(tmp_path) == tmp_path / "checkpoint-1"


def test_scripts_see_no_key_and_no_grader() -> None:
    environ = {"PATH": "/bin", "OPENAI_API_KEY": "k", "HF_TOKEN": "t", "GRADING_SERVER_URL": "u", "SEED": "1"}
    assert script_environment(environ) == {"PATH": "/bin", "SEED": "1"}


def test_a_damaged_journal_is_put_right_from_what_is_known(tmp_path: Path) -> None:
    path, torn = tmp_path / "research" / "journal.jsonl", tmp_path / "journal.torn"
    journal = Journal(path, torn=torn)
    journal.append(node(1))
    path.unlink()
    path.parent.rmdir()
    journal.append(node(2))
    assert [each.number for each in read_journal(path)] == [1, 2]


def test_from_a_line_that_is_not_the_next_iteration_on_the_journal_is_moved_away(tmp_path: Path) -> None:
    path, torn = tmp_path / "journal.jsonl", tmp_path / "journal.torn"
    journal = Journal(path, torn=torn)
    for number in (1, 2, 4):
        journal.append(node(number))
    again = Journal(path, torn=torn)
    assert ([each.number for each in again.nodes], again.moved) == ([1, 2], 1)
    assert len(read_journal(path)) == 2
    assert '"number":4' in torn.read_text("utf-8")


def test_a_loss_beyond_all_numbers_is_infinite(tmp_path: Path) -> None:
    curve = tmp_path / "curve.jsonl"
    curve.write_text('{"loss": 1' + "0" * 400 + "}\n", "utf-8")
    assert read_losses(curve, tmp_path / "none.log") == [math.inf]


def test_a_link_in_place_of_the_folder_holds_no_checkpoint_of_this_iteration(tmp_path: Path) -> None:
    (tmp_path / "n001" / "last").mkdir(parents=True)
    (tmp_path / "n001" / "last" / "model.safetensors").write_bytes(WEIGHTS)
    (tmp_path / "n002").symlink_to("n001")
    assert find_checkpoint(tmp_path / "n002") is None
