"""`posttrain wait`: exit 0 still running, 1 ended or gone, 2 cannot tell."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from blueprints.bench import Bench, needs_tmux, running, wait_until

pytestmark = needs_tmux


def typed(bench: Bench, name: str, line: str) -> None:
    """A session of a user's own with a command in it."""
    tmux = bench.tmux()
    session = tmux.create(name, folder=bench.root)
    tmux.type_line(session, line)


def ends_within(bench: Bench, name: str, marker: str) -> tuple[int, float]:
    """(exit code, seconds between the end of the marked command and the end of `wait`)."""
    waiting = bench.posttrain("wait", name, "60")
    wait_until(lambda: not running(marker))
    ended = time.monotonic()
    waiting.communicate(timeout=30)
    return waiting.returncode, time.monotonic() - ended


def test_a_running_command_is_0_after_the_time(bench: Bench) -> None:
    typed(bench, "ajet_x", "sleep 71001")
    wait_until(lambda: running("sleep\00071001"))

    began = time.monotonic()
    assert bench.call("wait", "ajet_x", "0.5")[0] == 0
    assert time.monotonic() - began >= 0.5


def test_a_command_that_ends_is_1_within_two_and_a_half_seconds(bench: Bench) -> None:
    typed(bench, "ajet_x", "sleep 3.071")
    wait_until(lambda: running("sleep\0003.071"))

    code, late = ends_within(bench, "ajet_x", "sleep\0003.071")

    assert code == 1
    assert late < 2.5


def test_a_script_in_a_shell_counts_as_running(bench: Bench) -> None:
    (bench.root / "long.sh").write_text("read -t 30 < <(sleep 30)\n")
    typed(bench, "ajet_x", f"bash {bench.root}/long.sh")
    wait_until(lambda: running("long.sh"))

    assert bench.call("wait", "ajet_x", "0.3")[0] == 0


def test_a_shell_opened_with_a_script_counts_as_running(bench: Bench) -> None:
    subprocess.run(
        ["tmux", "new-session", "-d", "-s", "own", "bash -c 'sleep 30; true'"], env=bench.env, check=True
    )

    assert bench.call("wait", "own", "0.3")[0] == 0


def test_an_idle_shell_is_1(bench: Bench) -> None:
    bench.tmux().create("idle", folder=bench.root)
    time.sleep(0.5)

    assert bench.call("wait", "idle", "30")[0] == 1


@pytest.mark.parametrize("server", [True, False])
def test_a_session_that_is_not_there_is_1(server: bool, bench: Bench) -> None:
    if server:
        bench.tmux().create("other", folder=bench.root)

    assert bench.call("wait", "gone", "30")[0] == 1


@pytest.mark.slow
def test_a_session_that_is_killed_is_1(bench: Bench) -> None:
    typed(bench, "ajet_x", "sleep 71002")
    wait_until(lambda: running("sleep\00071002"))
    waiting = bench.posttrain("wait", "ajet_x", "60")
    time.sleep(1.0)

    subprocess.run(["tmux", "kill-session", "-t", "ajet_x"], env=bench.env, check=True)
    ended = time.monotonic()
    waiting.communicate(timeout=30)

    assert waiting.returncode == 1
    assert time.monotonic() - ended < 2.5


def test_our_experiment_is_0_while_it_runs_and_1_within_two_and_a_half_seconds_of_its_end(
    bench: Bench,
) -> None:
    source = bench.blueprint("sleep 5.071; echo done")
    executor = bench.posttrain("blueprint", "run", source)
    name = bench.session(source).name

    assert bench.call("wait", name, "0.2")[0] == 0
    code, late = ends_within(bench, name, "sleep\0005.071")

    assert code == 1
    assert late < 2.5
    executor.communicate(timeout=30)
    assert bench.call("wait", name, "30")[0] == 1


def test_a_tmux_that_does_not_answer_is_2(bench: Bench, tmp_path: Path) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "tmux").write_text("#!/bin/sh\necho 'protocol version mismatch' >&2\nexit 1\n")
    (broken / "tmux").chmod(0o755)
    without = Bench(root=bench.root, env={**bench.env, "PATH": f"{broken}:{bench.env['PATH']}"})

    assert without.call("wait", "x", "5")[0] == 2


def test_without_tmux_nothing_can_be_told(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    without = Bench(root=bench.root, env={**bench.env, "PATH": str(tmp_path / "empty")})

    assert without.call("wait", "x", "5")[0] == 2


@pytest.mark.parametrize("arguments", [("x", "soon"), ("x", "nan"), ("x", "inf"), ("x",), ()])
def test_wrong_use_is_2(arguments: tuple[str, ...], bench: Bench) -> None:
    assert bench.call("wait", *arguments)[0] == 2


def test_negative_seconds_are_2(bench: Bench) -> None:
    assert bench.call("wait", "x", "--", "-5")[0] == 2
