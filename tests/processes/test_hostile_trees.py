"""No process of a tree outlives its stop, its leader or the harness, however it tries."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.infra.levels import Levels
from posttrain.infra.processes import Spawner

from .conftest import HOSTILE, Commands, Mark

KINDS = sorted(path.stem for path in HOSTILE.glob("*.sh"))


def needs(kind: str) -> None:
    if kind == "tmux_server" and shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")


@pytest.mark.parametrize("kind", KINDS)
def test_stop_leaves_nothing(spawner: Spawner, commands: Commands, mark: Mark, kind: str) -> None:
    needs(kind)
    child = spawner.spawn(commands.hostile(kind), name=kind)
    commands.wait_for("ready")
    assert mark.survivors()
    child.stop(grace_s=0.3)
    assert mark.survivors() == []
    assert not child.alive()


@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_that_is_killed_takes_its_tree_along(
    spawner: Spawner, commands: Commands, mark: Mark, kind: str
) -> None:
    needs(kind)
    child = spawner.spawn(commands.hostile(kind), name=kind)
    commands.wait_for("ready")
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    child.stop(grace_s=0.3)
    assert mark.survivors() == []


@pytest.mark.parametrize("mode", ["namespace", "best-effort", "view"])
@pytest.mark.parametrize("kind", KINDS)
def test_kill_9_of_the_harness_leaves_nothing(
    commands: Commands, mark: Mark, levels: Levels, mode: str, kind: str
) -> None:
    needs(kind)
    if mode == "view" and levels.why_no_bwrap:
        pytest.skip(levels.why_no_bwrap)
    if mode == "namespace" and levels.kill_mode != "namespace":
        pytest.skip("no namespace to be had")
    script = Path(__file__).with_name("harness.py")
    harness = subprocess.Popen(
        [sys.executable, str(script), mode, str(commands.folder), kind],
        env={**os.environ, "CHILD_MARK": mark.value},
    )
    commands.wait_for("ready")
    harness.kill()
    harness.wait()
    assert mark.gone_within(5)
