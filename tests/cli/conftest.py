"""One real run on the scripted engine, made once and copied for every test that looks at it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from posttrain.cli.main import execute
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.engines.scripted import Script, write_scripted
from posttrain.testing.agents import write_toy_agent
from posttrain.testing.tiny import tiny_model


def posttrain(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, in an empty folder beside the lab home."""
    return subprocess.run(
        [sys.executable, "-m", "posttrain", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=home.parent,
        env={**os.environ, "POSTTRAIN_HOME": str(home)},
        timeout=120,
    )


@pytest.fixture(scope="session")
def scripted_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `base`, a tiny whole model, and `better`, weights of it that answer better."""
    folder = tmp_path_factory.mktemp("models")
    tiny_model(folder / "base")
    write_scripted(folder / "better", Script(accuracy=0.9, seed=1), like=folder / "base")
    return folder


def version(number: int, accuracy: float) -> list[dict[str, object]]:
    """Steps of a toy agent that hands in a checkpoint which answers as often right as `accuracy` says."""
    folder = f"output/v{number}"
    return [
        {"do": "copy_base", "to": folder},
        {"do": "write", "to": f"{folder}/scripted.json", "data": {"accuracy": accuracy, "seed": number}},
        {"do": "submit", "model_path": folder},
    ]


@pytest.fixture(scope="session")
def finished_home(tmp_path_factory: pytest.TempPathFactory, scripted_models: Path) -> Path:
    """A lab home with one closed run of a toy agent; look, don't touch."""
    home = tmp_path_factory.mktemp("finished") / "home"
    write_toy_agent(home / "agents", "toy", [*version(1, 0.6), *version(2, 0.85)])
    made = posttrain(
        home,
        *("run", "--agent", "toy", "--task", "boolean", "--model", str(scripted_models / "base")),
        *("--engine", "scripted", "--limit", "100", "--timeout", "60", "--port", "0"),
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return home


@pytest.fixture
def finished(finished_home: Path, lab: LabPaths) -> tuple[LabPaths, RunPaths]:
    """A copy of that home of this test alone, and the run in it."""
    shutil.copytree(finished_home, lab.home, symlinks=True, dirs_exist_ok=True)
    return lab, RunPaths(next(lab.runs.glob("*/*")))


@dataclass(frozen=True)
class Shown:
    """What a command line printed and how it ended."""

    returncode: int
    stdout: str
    stderr: str


Cli = Callable[..., Shown]


@pytest.fixture
def cli(lab: LabPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this test's lab home, inside this process."""
    monkeypatch.setenv("POSTTRAIN_HOME", str(lab.home))
    monkeypatch.chdir(lab.home.parent)

    def run(*arguments: str) -> Shown:
        capsys.readouterr()
        code = execute(list(arguments))
        captured = capsys.readouterr()
        return Shown(code, captured.out, captured.err)

    return run
