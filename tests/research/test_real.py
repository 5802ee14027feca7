"""The default model, really trained in every iteration; and the same with a kill in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths
from posttrain.core.runs import RunRecord
from posttrain.infra.models import Model
from posttrain.testing.scripted_llm import ScriptedLlm
from research.kit import Turn, begin, journal, kill_after, play, resume, shape
from run_bench import Bench

IMPORTS = "from posttrain.training.simple import fine_tune, load_rows\n\n"
STORY = (
    Turn(
        "teach the words",
        IMPORTS + "fine_tune(load_rows(), learning_rate=2e-4, batch_size=8, max_steps=12)\n",
        keep=True,
    ),
    Turn("a tiny rate", IMPORTS + "fine_tune(learning_rate=1e-6, batch_size=8, max_steps=4)\n", keep=True),
)


def bench_in(folder: Path, model: Model, url: str) -> Bench:
    (folder / "home" / "agents").mkdir(parents=True)
    names = {"CHAT_MODEL": "scripted", "OPENAI_API_BASE": url, "LOOP_N": "2", "OMP_NUM_THREADS": "1"}
    return Bench(LabPaths(folder / "home"), model.folder, names)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_training_grows_the_same_tree(tmp_path: Path, default_model: Model) -> None:
    options = ("--limit", "100", "--timeout", "30m")
    with ScriptedLlm(play(STORY)) as llm:
        unbroken = bench_in(tmp_path / "unbroken", default_model, llm.url)
        begin(unbroken, *options).wait()
        killed = bench_in(tmp_path / "killed", default_model, llm.url)
        paths = kill_after(killed, begin(killed, *options), "dry_run", 1, within_s=900, delay_s=12)
        running = resume(killed, paths.run_id)
        paths = kill_after(killed, running, "trained", 1, within_s=900, delay_s=3)
        assert resume(killed, paths.run_id).wait() == 0
    nodes = journal(unbroken.only)
    assert all(node.grade is not None for node in nodes)
    assert shape(journal(paths)) == shape(nodes)
    record = RunRecord.model_validate_json(paths.record.read_bytes())
    assert record.result is not None
