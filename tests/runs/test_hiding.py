"""What a page about a run keeps to itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from posttrain.agents.registry import AgentRegistry
from posttrain.benchmarks.registry import TaskRegistry
from posttrain.core.errors import PosttrainError
from posttrain.core.paths import LabPaths
from posttrain.core.runs import RunRequest
from posttrain.infra.files import write_jsonl
from posttrain.infra.models import Sources
from posttrain.runs.hiding import blinds_for
from posttrain.runs.lab import Lab

QUESTION = "How many apples does the baker's third daughter keep?"


def lab_at(folder: Path) -> Lab:
    return Lab(
        paths=LabPaths(folder),
        tasks=TaskRegistry(),
        agents=AgentRegistry(()),
        sources=Sources(),
        offline=True,
        host_env={},
        python=Path(sys.executable),
        launch_folder=folder,
    )


def private_rows(lab: Lab, task: str) -> Path:
    folder = lab.paths.dataset(task) / "private" / "holdout"
    folder.mkdir(parents=True)
    return folder / "test.jsonl"


def hidden(lab: Lab, task: str) -> tuple[str, ...]:
    request = RunRequest(agent="noop", task=task, model="smollm2-135m")
    return blinds_for(lab.paths.run(task, "r1"), request, None, lab).hidden


@pytest.mark.parametrize("task", ["gsm8k", "gsm8k:4shot", "opencompass:gsm8k_gen_1d7fe4", "gone:gsm8k"])
def test_hidden_rows_are_those_of_the_task_whose_rows_are_asked(tmp_path: Path, task: str) -> None:
    lab = lab_at(tmp_path)
    rows = private_rows(lab, "gone" if task.startswith("gone") else "gsm8k")
    write_jsonl(rows, [{"question": QUESTION, "answer": "5"}])
    assert hidden(lab, task) == (QUESTION,)


def test_texts_in_lists_and_objects_are_hidden_however_they_are_written(tmp_path: Path) -> None:
    lab = lab_at(tmp_path)
    choice = 'the "first" of two\nlong choices: né'
    write_jsonl(private_rows(lab, "gsm8k"), [{"question": "short", "choices": {"text": [choice, "b"]}}])
    request = RunRequest(agent="noop", task="gsm8k", model="smollm2-135m")
    blinds = blinds_for(lab.paths.run("gsm8k", "r1"), request, None, lab)
    for written in (
        choice,
        " ".join(choice.split()),
        json.dumps(choice),
        json.dumps([choice], ensure_ascii=False),
    ):
        assert "long choices" not in blinds(f"asked {written} and answered")


@pytest.mark.parametrize("content", [b'{"question": "half', b"\xff\xfe", b"[" * 200_000, None])
def test_rows_that_cannot_be_read_are_an_error_that_names_the_file(
    tmp_path: Path, content: bytes | None
) -> None:
    lab = lab_at(tmp_path)
    rows = private_rows(lab, "gsm8k")
    if content is None:
        rows.mkdir()
    else:
        rows.write_bytes(content)
    with pytest.raises(PosttrainError, match=f"^{rows}: .*hidden rows"):
        hidden(lab, "gsm8k")
