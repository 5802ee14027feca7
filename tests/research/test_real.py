"""The default model, really trained in every iteration; and the same with a kill in the middle.

Minutes each on an idle machine: a training step takes 2.4 s on two cores.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths
from posttrain.core.runs import RunRecord
from posttrain.infra.models import Model
from posttrain.research.places import Places
from posttrain.testing.scripted_llm import ScriptedLlm
from research.kit import Turn, begin, journal, kill_after, play, resume, shape
from run_bench import Bench

IMPORTS = "from posttrain.training.simple import fine_tune, load_rows\n\n"
STORY = (
    Turn(
        "teach the words",
        IMPORTS + "fine_tune(load_rows(), learning_rate=2e-4, batch_size=8, max_steps=12)\n",
        keep=True,
        minutes=8,
    ),
    Turn(
        "a tiny rate",
        IMPORTS + "fine_tune(learning_rate=1e-6, batch_size=8, max_steps=4)\n",
        keep=True,
        minutes=8,
    ),
)

FIVE = (
    Turn(
        "teach the words",
        IMPORTS + "fine_tune(load_rows(), learning_rate=2e-4, max_steps=100)\n",
        keep=True,
        minutes=8,
    ),
    Turn("another field", IMPORTS + 'fine_tune(sorted(load_rows(), key=lambda row: row["expression"]))\n'),
    Turn(
        "a far larger rate",
        IMPORTS
        + "fine_tune(learning_rate=5.0, batch_size=8, warmup=0.0, max_gradient_norm=1e9, max_steps=40)\n",
        minutes=8,
    ),
    Turn("", None),
    Turn(
        "a tiny rate",
        IMPORTS + "fine_tune(learning_rate=1e-6, batch_size=16, max_steps=10)\n",
        keep=True,
        minutes=8,
    ),
)
"""One that improves, one that crashes, one that diverges, a malformed answer, one that does not help."""


def bench_in(folder: Path, model: Model, url: str) -> Bench:
    (folder / "home" / "agents").mkdir(parents=True)
    names = {"CHAT_MODEL": "scripted", "OPENAI_API_BASE": url, "LOOP_N": "2"}
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_real_iterations_cost_little_beside_their_training(tmp_path: Path, default_model: Model) -> None:
    with ScriptedLlm(play(FIVE)) as llm:
        bench = bench_in(tmp_path, default_model, llm.url)
        bench.environment |= {"LOOP_N": "5", "TRAIN_SHARE": "0.45"}
        assert begin(bench, "--timeout", "20m").wait() == 0
    nodes = journal(bench.only)
    assert [node.failure and node.failure.fault for node in nodes] == [
        None, "crash", "diverged", "answer", None,
    ]  # fmt: skip
    assert [(node.decision.kept, node.decision.by) for node in nodes if node.grade] == [
        (True, "numbers"), (False, "numbers"),
    ]  # fmt: skip
    record = RunRecord.model_validate_json(bench.only.record.read_bytes())
    assert record.result is not None
    assert record.result.improvement.value > 0
    account = json.loads(Places(bench.only.workspace).summary.read_text("utf-8"))
    assert account["own_share"] <= 0.02
    checked = bench.posttrain("report", "check", bench.only.run_id)
    assert checked.returncode == 0, checked.stdout
