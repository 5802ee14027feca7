"""`list` and `logs` on a lab home with runs in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from builders import grade, plan, record
from posttrain.cli.main import execute
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunPlan, RunRecord
from posttrain.infra.files import write_json
from posttrain.reports.results import record_result, result_row


@pytest.fixture
def home(lab: LabPaths, monkeypatch: pytest.MonkeyPatch) -> LabPaths:
    monkeypatch.setenv("POSTTRAIN_HOME", str(lab.home))
    monkeypatch.chdir(lab.home)
    return lab


def write_run(lab: LabPaths, made: RunPlan, happened: RunRecord | None) -> RunPaths:
    """The files of a run that the commands read."""
    paths = lab.run(made.request.task, made.run_id)
    paths.root.mkdir(parents=True)
    write_json(paths.request, made.request)
    write_json(paths.plan, made)
    if happened is not None:
        write_json(paths.record, happened)
        row = result_row(
            made, happened, [grade(1, 60.0, at=9)], driver="unknown", workspace=paths.workspace.root
        )
        record_result(lab.results_csv, row)
    return paths


def test_runs_are_listed_with_their_result(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home, plan("20260101T000000-001_recipe"), record("20260101T000000-001_recipe"))
    write_run(home, plan("20260102T000000-001_noop", agent="noop"), None)
    assert execute(["list", "runs"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "status", "task", "agent", "model", "score", "improvement"]
    assert "completed" in first
    assert first.endswith("65.4  +20.8 [+16.3, +25.3]")
    assert second.split()[:2] == ["20260102T000000-001_noop", "running"]


def test_a_damaged_run_hides_no_other(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home, plan("r1"), record("r1"))
    broken = write_run(home, plan("r2"), None)
    broken.request.write_text("{")
    assert execute(["list", "runs", "--json"]) == 0
    assert [row["status"] for row in json.loads(capsys.readouterr().out)] == ["completed", "unreadable"]


def test_a_broken_plugin_is_listed_with_its_reason(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, manifest in (("agents", "config.yaml"), ("benchmarks", "benchmark.yaml")):
        folder = home.home / kind / "mine"
        folder.mkdir(parents=True)
        (folder / manifest).write_text("[not, a, mapping]\n")
    assert execute(["list", "agents"]) == 0
    assert "mapping" in capsys.readouterr().out
    assert execute(["list", "tasks"]) == 0
    assert "mapping" in capsys.readouterr().out


def test_a_log_is_printed_byte_for_byte(home: LabPaths, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    paths = write_run(home, plan("r1"), record("r1"))
    paths.agent_log.write_bytes(b"step 1\n\xff\x1b[2J\n")
    paths.run_log.write_bytes(b"opened\n")
    assert execute(["logs", "r1", "--which", "agent"]) == 0
    assert capfdbinary.readouterr().out == b"step 1\n\xff\x1b[2J\n"
    assert execute(["logs", str(paths.root)]) == 0
    assert capfdbinary.readouterr().out == b"opened\n"


def test_a_missing_log_is_wrong_use(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home, plan("r1"), record("r1"))
    assert execute(["logs", "r1", "--which", "grading"]) == 2
    assert "grading_server.log" in capsys.readouterr().err


def test_following_ends_with_the_run_and_loses_nothing(home: LabPaths) -> None:
    paths = write_run(home, plan("r1"), None)
    follower = subprocess.Popen(
        [sys.executable, "-m", "posttrain", "logs", "r1", "-f"],
        stdout=subprocess.PIPE,
        env={**os.environ, "POSTTRAIN_HOME": str(home.home)},
    )
    paths.run_log.write_text("first\n")
    time.sleep(0.5)
    assert follower.poll() is None
    with paths.run_log.open("a") as file:
        file.write("last\n")
    write_json(paths.record, record("r1"))
    output, _ = follower.communicate(timeout=20)
    assert output == b"first\nlast\n"
    assert follower.returncode == 0
