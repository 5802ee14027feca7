"""SIGINT, SIGTERM, SIGHUP and the deadline: everything of the run ends, what is known is kept."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable

import pytest

from survival.kit import Harness, Site, Step, Story, version
from survival.test_kill import HALF_A_MODEL, grading

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
CLINGING: list[Step] = [
    {"do": "ignore_sigterm"},
    {"do": "spawn", "ignoring_sigterm": True},
    {"do": "spawn", "ignoring_sigterm": True, "new_session": True},
    {"do": "daemonise"},
]
"""Processes that no polite word ends."""
WAITING: list[Step] = [{"do": "sleep", "seconds": 50}]


def stopped(site: Site, harness: Harness, number: int) -> int:
    """Signal the harness; its exit code, once nothing of it has been left for long."""
    begun = time.monotonic()
    harness.strike(number)
    ended = harness.end(within_s=40)
    assert harness.left(within_s=max(0.0, 15.0 - (time.monotonic() - begun))) == []
    assert "Traceback" not in ended.stderr
    return ended.code


def assert_interrupted(site: Site, story: Story, number: int) -> None:
    record = story.record
    assert (record.status.value, record.result) == ("interrupted", None)
    assert record.reason == f"stopped by {signal.Signals(number).name}"
    assert site.row(story).status == "interrupted"
    assert not story.has("tested")


def assert_goes_on(site: Site, story: Story) -> None:
    ended = site.resume(story)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert site.row(story).status == "completed"
    site.assert_whole(story)


def reached_clinging(story: Story) -> bool:
    pids = story.paths.workspace.code / "pids"
    return pids.exists() and len(pids.read_text("utf-8").split()) >= 4


def test_sigterm_ends_whatever_the_agent_left_running(site: Site) -> None:
    site.agent([{"do": "only_on_resume", "steps": version(2, 0.85)}, *version(1, 0.6), *CLINGING, *WAITING])
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: reached_clinging(story))
    assert stopped(site, harness, signal.SIGTERM) == 143
    assert_interrupted(site, story, signal.SIGTERM)
    assert_goes_on(site, story)


PHASES: dict[str, tuple[Callable[[Story], object], list[Step]]] = {
    "baseline": (lambda s: grading(s, "baseline-val"), version(1, 0.6)),
    "agent": (lambda s: s.has("graded"), [*version(1, 0.6), *WAITING]),
    "copying": (lambda s: s.has("accepted"), [*HALF_A_MODEL, *WAITING]),
    "grading": (lambda s: grading(s, "1"), [*version(1, 0.6, delay_s=3.0), *WAITING]),
    "draining": (lambda s: s.has("stopped"), version(1, 0.6, delay_s=3.0, wait=False)),
    "final test": (lambda s: grading(s, "final-test"), version(1, 0.6, delay_s=3.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES, ids=lambda number: signal.Signals(number).name)
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase(slow_site: Site, phase: str, number: int) -> None:
    site = slow_site
    began, steps = PHASES[phase]
    site.agent([{"do": "only_on_resume", "steps": version(2, 0.85)}, *steps])
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: began(story))
    time.sleep(0.2)
    assert stopped(site, harness, number) == CODES[number]
    assert_interrupted(site, story, number)
    assert_goes_on(site, story)


@pytest.mark.slow
def test_a_signal_before_the_plan_leaves_request_and_reason(site: Site, slow_task: str) -> None:
    site.agent(version(1, 0.6))
    harness = site.begin(task=slow_task)
    story = harness.story()
    harness.until(lambda: list(site.lab.datasets.glob("sums/**/train.jsonl")))
    assert stopped(site, harness, signal.SIGINT) == 130
    assert "stopped by SIGINT" in story.run_log
    assert not story.paths.plan.exists()
    assert_goes_on(site, story)


@pytest.mark.slow
@needs_tmux
def test_a_tmux_server_of_the_agent_ends_with_it(site: Site) -> None:
    site.agent([*version(1, 0.6), {"do": "tmux", "socket": "/tmp/agent.sock"}, *WAITING])
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: (story.paths.workspace.code / "pids").exists())
    assert stopped(site, harness, signal.SIGHUP) == 129


@pytest.mark.slow
def test_at_the_deadline_everything_of_the_agent_ends(site: Site) -> None:
    site.agent([*version(1, 0.6), *CLINGING, *WAITING])
    harness = site.begin(timeout="6")
    story = harness.story()
    harness.until(lambda: reached_clinging(story))
    harness.strike(signal.SIGCONT)  # only remembers the tree
    ended = harness.end()
    assert ended.code == 0, ended
    assert harness.left(within_s=0.5) == []
    assert (story.record.status.value, story.record.stopped_at_deadline) == ("completed", True)
    assert story.record.duration_s == 6.0
    site.assert_whole(story)


@pytest.mark.slow
def test_under_nohup_a_hangup_is_no_reason_to_stop(site: Site) -> None:
    site.agent([*version(1, 0.6), {"do": "sleep", "seconds": 3}])
    harness = site.begin(prefix=["nohup"])
    story = harness.story()
    harness.until(lambda: story.has("graded"))
    harness.strike(signal.SIGHUP)
    assert harness.end().code == 0
    site.assert_whole(story)


@pytest.mark.slow
def test_ctrl_c_reaches_the_group_and_the_agent_still_has_its_grace(site: Site) -> None:
    """A terminal signals the whole foreground group; the agent is told by us alone, and may say farewell."""
    farewell = {"do": "on_sigterm", "to": "code/farewell", "seconds": 1.0}
    site.agent([{"do": "only_on_resume", "steps": version(2, 0.85)}, farewell, *version(1, 0.6), *WAITING])
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: story.has("graded"))
    harness.strike(signal.SIGCONT)
    os.killpg(harness.process.pid, signal.SIGINT)
    assert harness.end().code == 130
    assert harness.left(within_s=1.0) == []
    assert (story.paths.workspace.code / "farewell").read_text("utf-8") == "SIGTERM"
    assert_goes_on(site, story)


@pytest.mark.slow
def test_more_signals_while_it_closes_break_nothing(site: Site) -> None:
    site.agent([{"do": "only_on_resume", "steps": version(2, 0.85)}, *version(1, 0.6), *WAITING])
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: story.has("graded"))
    harness.strike(signal.SIGTERM)
    while harness.process.poll() is None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if harness.process.poll() is None:
                harness.process.send_signal(number)
        time.sleep(0.002)
    ended = harness.end()
    assert ended.code == 143, ended
    assert_interrupted(site, story, signal.SIGTERM)
    assert_goes_on(site, story)
