"""What a resume refuses, what it takes in its stride, and what it leaves alone."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

import posttrain
from posttrain.core.paths import LabPaths, RunPaths
from survival.kit import Ended, Site, Story, version

AGAIN = {"do": "only_on_resume", "steps": version(2, 0.85)}
WAITING = [AGAIN, *version(1, 0.6), {"do": "sleep", "seconds": 50}]


def interrupted(site: Site, *options: str) -> Story:
    """A run that was killed after its first grade, with the agent at work."""
    site.agent(WAITING)
    harness = site.begin(*options)
    story = harness.story()
    harness.until(lambda: story.has("graded"))
    harness.strike()
    harness.end()
    assert harness.left() == []
    return story


def finished(site: Site) -> Story:
    site.agent(version(1, 0.6))
    harness = site.begin()
    story = harness.story()
    assert harness.end().code == 0
    return story


def refused(ended: Ended, *words: str) -> None:
    """Wrong use: one line that says these words."""
    assert ended.code == 2, ended
    (line,) = ended.stderr.strip().splitlines()
    assert all(word in line for word in words), line


def edited(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def test_a_closed_run_is_left_as_it_is(site: Site) -> None:
    story = finished(site)
    before, table = story.content(), site.lab.results_csv.read_bytes()
    ended = site.resume(story)
    assert ended.code == 0, ended
    assert "status completed" in ended.stdout
    assert story.content() == before
    assert site.lab.results_csv.read_bytes() == table

    for part in (story.paths.record, site.lab.results_csv):
        part.unlink()  # what a death between the last row and the record leaves
        ended = site.resume(story)
        assert ended.code == 0, ended
        site.assert_whole(story)
        story.paths.record.unlink(missing_ok=True)
    site.resume(story)
    assert story.content().keys() == before.keys()
    assert {name for name, (data, _) in story.content().items() if data != before[name][0]} == set()


@pytest.mark.slow
def test_a_closed_run_without_a_result_is_closed_all_the_same(site: Site) -> None:
    site.agent([{"do": "leave", "code": 3}])
    harness = site.begin()
    story = harness.story()
    assert harness.end().code == 1
    before = story.content()
    assert site.resume(story).code == 0
    assert story.content() == before


def test_what_a_resume_refuses_is_named(site: Site) -> None:
    site.agent(WAITING)
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: story.has("graded"))
    refused(site.resume(story), story.paths.run_id, "another posttrain process")
    harness.strike()
    harness.end()
    refused(site.resume(story, "--seed", "3"), "--seed", "0")
    edited(story.paths.plan, seed=3, version="0.0.1")
    refused(site.resume(story), "seed was 3, is 0", "version was '0.0.1'")
    assert not story.has("resumed")


@pytest.mark.slow
def test_every_other_reason_to_refuse_is_named_too(site: Site) -> None:
    story = interrupted(site)
    refused(site.resume(story, "--timeout", "90"), "--timeout", "60")
    refused(site.start("run", "--resume", "nobody").end(), "--resume", "nobody")

    plan = story.paths.plan.read_bytes()
    edited(story.paths.plan, version="0.0.1")
    refused(site.resume(story), "version was '0.0.1'", "--allow-version-change")
    refused(site.resume(story, "--allow-version-change"), "plan.json")  # it is not the one that began
    story.paths.plan.write_bytes(b"{half")
    refused(site.resume(story), "plan.json is damaged")
    story.paths.plan.unlink()
    refused(site.resume(story), "plan.json is missing")
    story.paths.plan.write_bytes(plan)

    script = site.lab.agents / "toy" / "start.sh"
    script.write_text(script.read_text("utf-8") + "# another agent\n", "utf-8")
    refused(site.resume(story), "agent_digest was", story.paths.run_id)
    assert not story.has("resumed")


@pytest.mark.slow
def test_a_reboot_and_a_moved_lab_home_change_nothing(site: Site, tmp_path: Path) -> None:
    story = interrupted(site)
    edited(story.paths.clock, boot_id="00000000-0000-0000-0000-000000000000")
    home = tmp_path / "elsewhere" / "lab"
    home.parent.mkdir()
    shutil.move(site.lab.home, home)
    moved = Site(LabPaths(home), site.base)
    story = Story(RunPaths(home / story.paths.root.relative_to(site.lab.home)))
    ended = moved.resume(story)
    assert ended.code == 0, ended
    moved.assert_whole(story)
    assert len(story.rows("graded")) == 2


@pytest.mark.slow
def test_a_moved_lab_home_without_isolation_has_its_links_mended(site: Site, tmp_path: Path) -> None:
    story = interrupted(site, "--sandbox", "none")
    home = tmp_path / "elsewhere" / "lab"
    home.parent.mkdir()
    shutil.move(site.lab.home, home)
    moved = Site(LabPaths(home), site.base)
    story = Story(RunPaths(home / story.paths.root.relative_to(site.lab.home)))
    ended = moved.resume(story)
    assert ended.code == 0, ended
    moved.assert_whole(story)
    assert story.paths.workspace.data.readlink().is_relative_to(home)


@pytest.mark.slow
def test_an_older_run_goes_on_under_a_newer_version_only_on_request(site: Site, tmp_path: Path) -> None:
    older = tmp_path / "older" / "posttrain"
    shutil.copytree(Path(posttrain.__file__).parent, older, ignore=shutil.ignore_patterns("__pycache__"))
    (older / "__init__.py").write_text('__version__ = "0.0.1"\n', "utf-8")
    site.agent(WAITING)
    harness = site.begin("--sandbox", "none", env={"PYTHONPATH": str(older.parent)})
    story = harness.story()
    harness.until(lambda: story.has("graded"), within_s=120)
    harness.strike()
    harness.end()
    refused(site.resume(story), "version was '0.0.1'", "--allow-version-change")
    ended = site.resume(story, "--allow-version-change")
    assert ended.code == 0, ended
    site.assert_whole(story)
    mark = f"resumed by version {posttrain.__version__}, begun by 0.0.1"
    assert mark in story.record.marks


@pytest.mark.slow
def test_times_count_as_if_the_run_had_not_been_interrupted(site: Site) -> None:
    """A grade's place on the time axis is in seconds of the budget, whenever the run was taken up again."""
    story = interrupted(site)
    time.sleep(8)
    assert site.resume(story).code == 0
    metrics = json.loads(story.paths.metrics.read_text("utf-8"))
    assert 0 <= metrics["first_valid_delay"] <= 4
    assert 0 <= metrics["last_submit_gap"] <= 3
    assert metrics["time_used_ratio"] < 15 / 60
    site.assert_whole(story)


@pytest.mark.slow
def test_what_the_agent_put_in_the_place_of_model_and_data_does_not_stop_a_resume(site: Site) -> None:
    story = interrupted(site)
    workspace = story.paths.workspace
    shutil.rmtree(workspace.models)
    workspace.models.symlink_to("/etc")
    workspace.data.rmdir()
    workspace.data.write_text("mine", "utf-8")
    workspace.run_log.unlink()
    workspace.run_log.mkdir()
    ended = site.resume(story)
    assert ended.code == 0, ended
    site.assert_whole(story)


@pytest.mark.slow
def test_a_lost_clock_is_made_up_from_the_ledger(site: Site) -> None:
    site.agent([AGAIN, {"do": "sleep", "seconds": 5}, *version(1, 0.6), {"do": "sleep", "seconds": 50}])
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: story.has("graded"))
    harness.strike()
    harness.end()
    story.paths.clock.unlink()
    assert site.resume(story).code == 0
    assert story.rows("resumed")[0]["data"]["used_s"] >= 5


@pytest.mark.slow
def test_a_torn_row_is_set_aside_and_the_run_goes_on(site: Site) -> None:
    story = interrupted(site)
    with story.paths.ledger.open("ab") as file:
        file.write(b'{"seq": 9, "half')
    ended = site.resume(story)
    assert ended.code == 0, ended
    assert story.paths.torn.read_bytes() == b'{"seq": 9, "half\n'
    site.assert_whole(story)


@pytest.mark.slow
def test_a_changed_ledger_stops_a_resume(site: Site) -> None:
    story = interrupted(site)
    raw = story.paths.ledger.read_bytes()
    for word, told in ((b'"accepted"', "line"), (b'"status":"graded"', "row")):
        story.paths.ledger.write_bytes(raw.replace(word, word.upper(), 1))
        ended = site.resume(story)
        assert ended.code == 1
        (line,) = ended.stderr.splitlines()
        assert told in line


@pytest.mark.slow
def test_killed_again_and_again_a_run_still_ends_whole(site: Site) -> None:
    """Struck at arbitrary moments, about a dozen times."""
    steps = [step for number in range(1, 5) for step in version(number, 0.4 + number / 10, delay_s=0.4)]
    site.agent(steps)
    harness = site.begin(timeout="120")
    story = harness.story()
    for blow in range(12):
        time.sleep(1.1 + 0.37 * (blow % 5))
        if harness.process.poll() is not None:
            break
        harness.strike()
        harness.end()
        assert harness.left() == []
        harness = site.start("run", "--resume", story.paths.run_id)
    harness.end(within_s=180)
    ended = site.resume(story)
    assert ended.code == 0, ended
    site.assert_whole(story)
