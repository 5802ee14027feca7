"""`kill -9` of the harness in every phase, then `--resume`: nothing is lost, nothing is graded twice.

Each phase is a place where a test can strike: what makes it last, and what shows that it has begun.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from survival.kit import Harness, Site, Step, Story, somebody_elses_lock, unix, version

SHARD = "model-00001-of-00002.safetensors"
INDEX = {"metadata": {}, "weight_map": {"a": SHARD, "b": SHARD.replace("00001-of", "00002-of")}}
HALF_A_MODEL: list[Step] = [
    {"do": "copy_base", "to": "output/half"},
    {"do": "remove", "path": "output/half/model.safetensors"},
    {"do": "write", "to": "output/half/model.safetensors.index.json", "data": INDEX},
    {"do": "write", "to": f"output/half/{SHARD}", "text": "not yet"},
    {"do": "submit", "model_path": "output/half"},
]
"""A folder that looks as if it were still being saved: the copy waits for it to come to rest."""
LASTING: tuple[Step, ...] = ({"do": "sleep", "seconds": 50},)
LEAVES_SOMETHING: tuple[Step, ...] = (
    {"do": "spawn", "ignoring_sigterm": True, "new_session": True},
    {"do": "sleep", "seconds": 1},
    {"do": "leave", "code": 0},
)
AGAIN: list[Step] = [
    {"do": "dump_environment", "to": "code/resumed.json"},
    {"do": "get", "path": "/time"},
    *version(2, 0.85),
]
"""What the agent does when it is started a second time."""


@dataclass(frozen=True)
class Phase:
    """Where to strike."""

    began: Callable[[Story], Any]
    """Whether the phase is reached."""
    steps: tuple[Step, ...] = tuple(version(1, 0.6))
    then: tuple[Step, ...] = ()
    """What the first agent does after it has handed in."""
    pause_s: float = 0.0
    restarted: bool = True
    """Whether the agent is started again."""
    lost: tuple[int, ...] = ()
    """Numbers whose verdict is `error: interrupted while copying`."""
    task: str = "boolean"
    base_script: Mapping[str, Any] | None = None
    results_locked: bool = False
    options: tuple[str, ...] = field(default=("--sandbox", "auto"))


def grading(story: Story, label: str) -> bool:
    return (story.paths.grading_of(label) / "engine.log").exists()


PHASES = {
    "resources": Phase(
        lambda s: list(s.paths.root.parents[2].glob("datasets/sums/**/train.jsonl")), task="sums"
    ),
    "plan": Phase(lambda s: s.paths.plan.exists()),
    "workspace": Phase(lambda s: s.paths.workspace.root.exists()),
    "baseline": Phase(
        lambda s: grading(s, "baseline-val"), base_script={"accuracy": 0.5, "delay_s": 1.5}, pause_s=0.5
    ),
    "agent": Phase(lambda s: s.has("graded"), then=LASTING, pause_s=2.3),
    "copying": Phase(lambda s: s.has("accepted"), steps=tuple(HALF_A_MODEL), then=LASTING, lost=(1,)),
    "queued": Phase(
        lambda s: len(s.rows("copied")) == 2,
        steps=(*version(1, 0.6, delay_s=2.0, wait=False), *version(3, 0.7, wait=False)),
        then=LASTING,
    ),
    "grading": Phase(
        lambda s: grading(s, "1"), steps=tuple(version(1, 0.6, delay_s=2.0)), then=LASTING, pause_s=0.7
    ),
    "leftovers": Phase(
        lambda s: s.has("stopped"),
        then=LEAVES_SOMETHING,
        pause_s=0.5,
        restarted=False,
    ),
    "draining": Phase(
        lambda s: s.has("stopped"),
        steps=tuple(version(1, 0.6, delay_s=2.0, wait=False)),
        then=({"do": "sleep", "seconds": 0.5},),
        pause_s=0.3,
        restarted=False,
    ),
    "final test": Phase(
        lambda s: grading(s, "final-test"),
        steps=tuple(version(1, 0.6, delay_s=1.5)),
        pause_s=0.5,
        restarted=False,
    ),
    "reports": Phase(lambda s: s.paths.metrics.exists(), restarted=False),
    "closed, no row": Phase(lambda s: s.has("closed"), results_locked=True, restarted=False),
    "row, no record": Phase(
        lambda s: s.paths.root.parents[2].joinpath("results.csv").exists(), restarted=False
    ),
}
QUICK = ("grading",)


def prepared(site: Site, phase: Phase) -> Site:
    site.agent([{"do": "only_on_resume", "steps": AGAIN}, *phase.steps, *phase.then])
    if phase.base_script is not None:
        (site.base / "scripted.json").write_text(json.dumps(phase.base_script), "utf-8")
    return site


def killed(site: Site, phase: Phase) -> tuple[Harness, Story]:
    """A run that was killed in this phase."""
    with ExitStack() as until_death:
        if phase.results_locked:
            until_death.enter_context(somebody_elses_lock(site.lab.home / ".results.csv.lock"))
        harness = site.begin(*phase.options, task=phase.task)
        story = harness.story()
        harness.until(lambda: phase.began(story))
        time.sleep(phase.pause_s)
        harness.strike()
        harness.end()
    return harness, story


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in PHASES]
)
def test_a_run_killed_in_any_phase_goes_on_where_it_was(
    site: Site, slow_task: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    phase = PHASES[name]
    harness, story = killed(prepared(site, phase), phase)
    died = time.time()
    assert harness.left() == [], "processes of the run outlive the harness"
    before = [row["kind"] for row in story.rows()]
    files = sorted(path.name for path in story.paths.root.iterdir())
    record_property("on disk", f"{before} {files}")

    ended = site.resume(story)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert [row["kind"] for row in story.rows()][: len(before)] == before
    site.assert_whole(story)
    assert story.record.status.value == "completed"
    assert {row["data"]["submission_id"] for row in story.rows("graded") if row["data"]["error"]} == {
        *phase.lost
    }
    assert_budget(story, died)
    assert_started_again(story, phase)
    record_property("after", f"{[row['kind'] for row in story.rows()]}")


def assert_budget(story: Story, died: float) -> None:
    """What was used before the death counts, the time until the resume does not."""
    resumed = story.rows("resumed")
    started = story.rows("started")
    if not resumed or not started or unix(started[0]) > died:
        return
    stopped = [row for row in story.rows("stopped") if row["seq"] < resumed[0]["seq"]]
    used = stopped[0]["data"]["used_s"] if stopped else died - unix(started[0])
    assert resumed[0]["data"]["used_s"] == pytest.approx(used, abs=2.0)


def assert_started_again(story: Story, phase: Phase) -> None:
    """Once the agent has ended it is not started again; else it is told so, and when its time is over."""
    told = story.paths.workspace.code / "resumed.json"
    if not phase.restarted:
        assert not told.exists()
        assert len(story.rows("started")) == 1
        return
    if not story.rows("resumed"):
        return  # nothing of it had happened
    env = json.loads(told.read_text("utf-8"))
    meta = json.loads(story.paths.workspace.run_meta.read_text("utf-8"))
    assert env["POSTTRAIN_RESUMED"] == "1"
    assert meta["start_time"] + meta["timeout_s"] == pytest.approx(int(env["DEADLINE"]), abs=2)
    last = story.rows("started")[-1]["data"]
    assert int(env["TIMEOUT_S"]) == pytest.approx(60 - last["used_s"], abs=2)
    assert meta["last_submit_time"] == pytest.approx(unix(story.rows("accepted")[-1]), abs=2)
