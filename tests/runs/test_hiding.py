"""What a page about a run keeps to itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from posttrain.agents.registry import AgentRegistry
from posttrain.benchmarks.registry import TaskRegistry
from posttrain.core.paths import LabPaths
from posttrain.core.runs import RunRequest
from posttrain.infra.files import write_jsonl
from posttrain.infra.models import Sources
from posttrain.runs.hiding import blinds_for
from posttrain.runs.lab import Lab

QUESTION = "How many apples does the baker's third daughter keep?"


@pytest.mark.parametrize("task", ["gsm8k", "gsm8k:4shot", "opencompass:gsm8k_gen_1d7fe4", "gone:gsm8k"])
def test_hidden_rows_are_those_of_the_task_whose_rows_are_asked(tmp_path: Path, task: str) -> None:
    lab = Lab(
        paths=LabPaths(tmp_path),
        tasks=TaskRegistry(),
        agents=AgentRegistry(()),
        sources=Sources(),
        offline=True,
        host_env={},
        python=Path(sys.executable),
        launch_folder=tmp_path,
    )
    rows_of = "gone" if task.startswith("gone") else "gsm8k"
    folder = lab.paths.dataset(rows_of) / "private" / "holdout"
    folder.mkdir(parents=True)
    write_jsonl(folder / "test.jsonl", [{"question": QUESTION, "answer": "5"}])
    request = RunRequest(agent="noop", task=task, model="smollm2-135m")
    assert blinds_for(lab.paths.run(task, "r1"), request, None, lab).hidden == (QUESTION,)
