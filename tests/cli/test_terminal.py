"""Progress without a terminal: few plain lines; with one: a bar."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest

from posttrain.cli.terminal import Console
from posttrain.runs.watching import Watched

SCRIPT = """
import time
from posttrain.cli.terminal import Console
console = Console()
with console.progress("grading val") as report:
    for done in range(0, 41, 10):
        report(done, 40)
        time.sleep(0.15)
        console.say(f"said at {done} [bold]")
"""


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().progress("grading val") as report:
        for done in range(101):
            time.sleep(0.003)
            report(done, 100)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("grading val: 100 of 100, ")
    assert lines[0].endswith(" items/s")


def test_a_single_batch_has_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().progress("grading val") as report:
        for done in range(1, 13):
            report(done, 12)
    assert capsys.readouterr().out == "grading val: 12 of 12\n"


def test_beside_json_nothing_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(beside_json=True)
    console.say("hello \x1b[2J")
    with console.progress("grading") as report:
        report(1, 1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hello \N{REPLACEMENT CHARACTER}[2J\ngrading: 1 of 1")


def test_a_terminal_gets_a_bar_with_a_rate() -> None:
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=follower, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(follower)
    shown = b""
    try:
        while block := os.read(leader, 65536):
            shown += block
    except OSError:  # the kernel's end of file of a terminal
        pass
    os.close(leader)
    assert child.wait(timeout=20) == 0
    assert b"40/40" in shown
    assert b"items/s" in shown
    assert b"said at 10 [bold]" in shown, "lines stand above the bar, as they are"


def test_each_grading_of_a_run_is_told_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with Watched(Console(), "grading val") as watched:
        for total in (40, 40):
            for done in range(0, total + 1, 10):
                watched(done, total)
        watched(10, 40)  # one that fails half way
        for done in (0, 40):
            watched(done, 40)
    watched(5, 40)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("grading val: 40 of 40") for line in lines)
