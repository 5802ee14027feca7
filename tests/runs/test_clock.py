"""The budget is wall-clock time that no restart and no change of the system's clock can lengthen."""

import json
import time
from pathlib import Path

import pytest

from posttrain.runs.clock import Clock, read_clock


def test_remaining_is_the_whole_budget_before_the_start(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock.json", timeout_s=10)
    assert (clock.used(), clock.remaining(), clock.expired()) == (0.0, 10.0, False)
    assert read_clock(tmp_path / "clock.json") is None


def test_time_passes_only_between_start_and_stop(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock.json", timeout_s=10)
    clock.start()
    time.sleep(0.05)
    clock.stop()
    used = clock.used()
    time.sleep(0.05)
    assert 0.05 <= used < 1.0
    assert clock.used() == used


def test_state_is_replaced_every_second(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock.json", timeout_s=100)
    clock.start()
    time.sleep(1.3)
    state = read_clock(tmp_path / "clock.json")
    clock.stop()
    assert state is not None
    assert 0.9 <= state.used_s <= 1.3
    assert state.deadline is not None


def test_resume_takes_the_last_value_plus_one_second(tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    clock = Clock(path, timeout_s=100)
    clock.start()
    clock.pause()
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"used_s": 40.0}))
    resumed = Clock.resumed(path, timeout_s=100)
    assert resumed.used() == 41.0
    resumed.start()
    assert resumed.start_time + 100 == pytest.approx(resumed.deadline)
    assert resumed.remaining() == pytest.approx(59.0, abs=0.5)
    resumed.stop()


def test_resume_after_the_end_adds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    clock = Clock(path, timeout_s=100)
    clock.start()
    clock.stop()
    state = read_clock(path)
    assert state is not None
    assert Clock.resumed(path, timeout_s=100).used() == state.used_s


def test_used_time_never_exceeds_the_budget_on_disk(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock.json", timeout_s=0.01)
    clock.start()
    time.sleep(0.05)
    clock.stop()
    state = read_clock(tmp_path / "clock.json")
    assert state is not None
    assert state.used_s == 0.01
    assert clock.expired()


def test_a_damaged_clock_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "clock.json").write_text("{half")
    assert read_clock(tmp_path / "clock.json") is None
