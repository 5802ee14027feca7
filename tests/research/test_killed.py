"""`kill -9` of the harness in every step of an iteration, then `--resume`: the same tree as without."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths, RunPaths
from posttrain.grading.ledger import read_rows
from posttrain.research.places import Places
from posttrain.testing.scripted_llm import ScriptedLlm
from posttrain.testing.tiny import tiny_model
from research.conftest import Played
from research.kit import Turn, begin, journal, kill_after, play, program, shape
from run_bench import Bench

STORY = (
    Turn("teach the words", program(0.9, first="time.sleep(0.4)", delay=0.4), keep=True, slow_s=0.3),
    Turn("a tiny rate", program(0.8, first="time.sleep(0.4)", delay=0.4), slow_s=0.3),
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The tree of a run that nobody disturbs."""
    home = tmp_path_factory.mktemp("unbroken") / "home"
    (home / "agents").mkdir(parents=True)
    bench = Bench(LabPaths(home), tiny_model(home.parent / "base"))
    with ScriptedLlm(play(STORY)) as llm:
        bench.environment |= variables(llm.url)
        bench.run("rdagent", "--limit", "100")
    return shape(journal(bench.only))


def variables(url: str) -> dict[str, str]:
    return {"CHAT_MODEL": "scripted", "OPENAI_API_BASE": url, "LOOP_N": "2"}


@pytest.mark.parametrize(
    ("step", "iteration"),
    [
        ("begun", 1),
        ("proposed", 1),
        ("built", 1),
        ("dry_run", 1),
        ("trained", 1),
        ("scored", 1),
        ("reviewed", 1),
        ("dry_run", 2),
        ("trained", 2),
        ("reviewed", 2),
    ],
)
@pytest.mark.slow
def test_a_killed_run_grows_the_same_tree(
    bench: Bench, played: Played, unbroken: list[object], step: str, iteration: int
) -> None:
    llm = played(play(STORY))
    bench.environment |= variables(llm.url)
    running = begin(bench, "--engine", "scripted", "--limit", "100", "--timeout", "60")
    paths = kill_after(bench, running, step, iteration)
    before = {path: path.read_bytes() for path in steps_of(paths)}
    asked = len(llm.requests)
    ended = bench.posttrain("run", "--resume", paths.run_id)
    assert ended.returncode == 0, paths.agent_log.read_text("utf-8")
    assert shape(journal(paths)) == unbroken
    assert {path: path.read_bytes() for path in before} == before  # what was done was not done again
    assert len(llm.requests) <= asked + 6 - done_calls(step, iteration)
    accepted = [row for row in read_rows(paths.ledger) if row.kind == "accepted"]
    assert len(accepted) == 2
    summary = (paths.workspace.reports / "summary.md").read_text("utf-8")
    assert summary.count("## Iteration ") == 2


def done_calls(step: str, iteration: int) -> int:
    """Answers of the driver model that must not be asked for again."""
    so_far = {"begun": 0, "proposed": 1, "built": 2, "dry_run": 2, "trained": 2, "scored": 2, "reviewed": 3}
    return 3 * (iteration - 1) + so_far[step]


def steps_of(paths: RunPaths) -> list[Path]:
    return sorted(Places(paths.workspace).root.glob("n*/*.json"))
