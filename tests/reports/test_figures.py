"""The figure of a run, drawn by the real drawing process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import START, grade, plan, record
from posttrain.core.grading import Grade
from posttrain.infra.processes import Spawner
from posttrain.reports.figures import Trajectory, TrajectoryDrawer, as_csv, trajectory

GRADES = (
    grade(1, 52.0, at=60),
    grade(2, 68.0, at=180, final=True),
    grade(3, None, at=300),
    grade(4, 61.0, at=420),
)


def data(*grades: Grade) -> Trajectory:
    return trajectory(grades, plan=plan(), record=record(), start_time=START)


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def test_the_picture_is_drawn_outside_the_harness(tmp_path: Path, spawner: Spawner) -> None:
    pytest.importorskip("matplotlib")
    with TrajectoryDrawer(spawner, env=environment(), log=tmp_path / "draw.log") as drawer:
        path, note = drawer.draw(data(*GRADES), tmp_path / "figures")
    assert note is None, (tmp_path / "draw.log").read_text()
    assert path == tmp_path / "figures" / "score_trajectory.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def test_a_run_without_submissions_has_a_picture_too(tmp_path: Path, spawner: Spawner) -> None:
    pytest.importorskip("matplotlib")
    empty = trajectory([], plan=plan(), record=record(result=None), start_time=START)
    with TrajectoryDrawer(spawner, env=environment(), log=tmp_path / "draw.log") as drawer:
        assert drawer.draw(empty, tmp_path / "figures").note is None


def test_a_failing_drawing_leaves_the_numbers(tmp_path: Path, spawner: Spawner) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "figures" / "score_trajectory.png").mkdir(parents=True)
    with TrajectoryDrawer(spawner, env=environment(), log=tmp_path / "draw.log") as drawer:
        path, note = drawer.draw(data(*GRADES), tmp_path / "figures")
    assert path.name == "score_trajectory.csv"
    assert note == "the figure's data as CSV: drawing failed, see draw.log"
    assert path.read_text("utf-8").splitlines()[0].startswith("submission_id,")


def test_a_drawer_that_is_never_used_ends_at_once(tmp_path: Path, spawner: Spawner) -> None:
    with TrajectoryDrawer(spawner, env=environment(), log=tmp_path / "draw.log"):
        pass


def test_the_csv_has_an_empty_cell_where_nothing_was_graded() -> None:
    lines = as_csv(data(*GRADES)).splitlines()
    assert lines[0] == "submission_id,elapsed_s,verdict,score,ci_low,ci_high,selected"
    assert lines[2].startswith("2,180.0,graded,68.00,")
    assert lines[2].endswith(",True")
    assert lines[3] == "3,300.0,unloadable,,,,False"


def test_the_held_out_result_shows_the_improvement_with_its_interval() -> None:
    held_out = data(*GRADES).held_out
    assert held_out is not None
    assert held_out.gain == "+20.8 [+16.3, +25.3]"


def test_under_open_no_held_out_result_is_drawn() -> None:
    shown = trajectory([], plan=plan(protocol="open"), record=record(), start_time=START)
    assert shown.held_out is None
    assert shown.split == "test"
