"""A full disk and folders that cannot be written, in every phase: a clear end, and a resume once mended."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths
from posttrain.testing.tiny import tiny_model
from survival.kit import Ended, Harness, Site, Step, Story, stories, version
from survival.test_kill import HALF_A_MODEL, grading

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
MEGABYTES = 48
WAITING: list[Step] = [{"do": "sleep", "seconds": 50}]
AGAIN: Step = {"do": "only_on_resume", "steps": version(2, 0.85)}


def mounted(*arguments: str) -> None:
    result = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {result.stderr.strip()}")


def unmounted(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A lab home on a small disk of its own."""
    home = tmp_path / "small"
    home.mkdir()
    mounted("-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(home))
    try:
        lab = LabPaths(home)
        lab.agents.mkdir()
        yield Site(lab, tiny_model(tmp_path / "base"))
    finally:
        unmounted(home)


class Filler:
    """A file that takes what is left of a disk."""

    def __init__(self, home: Path) -> None:
        self._path = home / "filler"

    def fill(self, *, but: int = 0) -> None:
        """Leave at most `but` bytes."""
        with self._path.open("ab", buffering=0) as file, suppress(OSError):
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))
        if but:
            os.truncate(self._path, max(0, self._path.stat().st_size - but))

    def free(self) -> None:
        self._path.unlink()


def assert_clear(ended: Ended, story: Story) -> None:
    """The reason is told: in the record if there is one, else in one line."""
    assert "Traceback" not in ended.stderr
    assert ended.code in (1, 2), ended
    if story.paths.record.exists():
        assert story.record.status.value == "error"
        assert "space" in (story.record.reason or "")
    else:
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("posttrain: ")]
        assert "space" in line


def assert_goes_on(site: Site, story: Story) -> None:
    ended = site.resume(story)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert story.record.status.value == "completed"
    site.assert_whole(story)


Began = Callable[[Story], object]
PHASES: dict[str, tuple[Began, list[Step]]] = {
    "plan": (lambda s: True, version(1, 0.6)),
    "workspace": (lambda s: s.has("opened"), version(1, 0.6)),
    "baseline": (lambda s: grading(s, "baseline-val"), version(1, 0.6)),
    "draining": (lambda s: s.has("stopped"), version(1, 0.6, delay_s=2.0, wait=False)),
    "final test": (lambda s: grading(s, "final-test"), version(1, 0.6, delay_s=2.0)),
    "reports": (lambda s: s.has("tested"), version(1, 0.6)),
}


def full_at(site: Site, began: Began) -> tuple[Harness, Story, Filler]:
    """A run on whose disk nothing is left from this moment on."""
    harness, filler = site.begin(), Filler(site.lab.home)
    story = harness.story()
    harness.until(lambda: began(story))
    filler.fill()
    return harness, story, filler


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_disk_that_fills_up_ends_the_run_with_a_reason(small: Site, phase: str) -> None:
    began, steps = PHASES[phase]
    small.agent([AGAIN, *steps])
    (small.base / "scripted.json").write_text('{"accuracy": 0.5, "delay_s": 1.0}', "utf-8")
    harness, story, filler = full_at(small, began)
    if phase == "draining":  # a verdict is worth waiting for: the grader tries again until there is room
        time.sleep(4)
        assert harness.process.poll() is None
        assert not story.has("graded")
        filler.free()
        assert harness.end().code == 0
        small.assert_whole(story)
        return
    ended = harness.end()
    assert_clear(ended, story)
    assert harness.left() == []
    filler.free()
    assert_goes_on(small, story)


@pytest.mark.slow
def test_a_full_disk_costs_an_agent_neither_its_grade_nor_gives_it_time(small: Site) -> None:
    """While it is full the clock goes on, a copy is answered 507 and not counted; then work goes on."""
    small.agent(
        [
            *version(1, 0.6),
            {"do": "append", "to": "code/full", "text": ""},
            {"do": "sleep", "seconds": 4},
            {"do": "submit", "model_path": "output/v1"},
            {"do": "sleep", "seconds": 5},
            *version(2, 0.85),
        ]
    )
    harness, filler = small.begin(), Filler(small.lab.home)
    story = harness.story()
    harness.until(lambda: story.has("graded") and (story.paths.workspace.code / "full").exists())
    filler.fill(but=1 << 17)
    time.sleep(5.5)
    filler.free()
    ended = harness.end()
    assert ended.code == 0, ended
    assert [answer["http"] for answer in story.answers()] == [200, 507, 200]
    assert story.record.verdicts["error"] == 1
    assert story.record.duration_s >= 9
    small.assert_whole(story)


@pytest.mark.slow
def test_time_passes_on_a_full_disk(small: Site) -> None:
    """Killed while the disk is full, a run has no second more than it had."""
    small.agent([AGAIN, *version(1, 0.6), *WAITING])
    harness, story, filler = full_at(small, lambda s: s.has("graded"))
    filler.fill()
    time.sleep(6)
    harness.strike()
    harness.end()
    filler.free()
    assert_goes_on(small, story)
    assert story.rows("resumed")[0]["data"]["used_s"] >= 6


@pytest.mark.slow
def test_a_home_without_room_for_checkpoints_is_refused_before_anything_happens(small: Site) -> None:
    small.agent(version(1, 0.6))
    assert small.begin().end().code == 0
    Filler(small.lab.home).fill(but=1 << 20)
    ended = small.begin().end()
    assert ended.code == 2
    assert "POSTTRAIN_HOME" in ended.stderr
    assert len(stories(small.lab)) == 1


FOLDERS: dict[str, tuple[str, Began, list[Step]]] = {
    "baselines": ("baselines", lambda s: s.has("opened"), version(1, 0.6)),
    "workspace": ("workspace", lambda s: s.has("opened"), version(1, 0.6)),
    "submissions": (
        "submissions",
        lambda s: s.has("started"),
        [{"do": "sleep", "seconds": 2}, *version(1, 0.6)],
    ),
    "grading": ("grading", lambda s: s.has("stopped"), version(1, 0.6, delay_s=1.0, wait=False)),
    "final test": ("grading", lambda s: s.has("stopped"), version(1, 0.6)),
    "reports": ("reports", lambda s: s.has("stopped"), version(1, 0.6)),
    "run": (".", lambda s: s.has("graded"), [*version(1, 0.6), {"do": "sleep", "seconds": 2}]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_became_read_only(site: Site, name: str) -> None:
    """Told with its name; once it can be written again, the run goes on and no half of a file counts."""
    part, began, steps = FOLDERS[name]
    site.agent([AGAIN, *steps])
    (site.base / "scripted.json").write_text('{"accuracy": 0.5, "delay_s": 1.0}', "utf-8")
    site.lab.baselines.mkdir(parents=True)
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: began(story))
    folder = site.lab.baselines if part == "baselines" else story.paths.root / part
    folder.mkdir(exist_ok=True)
    mounted("--bind", str(folder), str(folder))
    try:
        mounted("-o", "remount,bind,ro", str(folder))
        ended = harness.end()
    finally:
        unmounted(folder)
    assert "Traceback" not in ended.stderr
    assert harness.left() == []
    record = story.record if story.paths.record.exists() else None
    if record is not None and record.closed:  # what could not be copied or graded got the verdict `error`
        assert name in ("submissions", "grading")
        assert "Read-only" in story.rows("graded")[0]["data"]["error"]
        return
    assert "Read-only" in (ended.stderr if record is None else record.reason or "")
    assert_goes_on(site, story)


def test_half_a_file_never_counts(small: Site, tmp_path: Path) -> None:
    """Copies and caches that a full disk cut off are not there afterwards."""
    small.agent([AGAIN, *HALF_A_MODEL])
    filler = Filler(small.lab.home)
    harness = small.begin()
    story = harness.story()
    harness.until(lambda: story.has("accepted"))
    filler.fill()
    time.sleep(1)
    harness.strike()
    harness.end()
    filler.free()
    assert_goes_on(small, story)
    assert not list(story.paths.root.rglob("*.part"))
    assert not list(small.lab.baselines.glob("*.tmp"))
