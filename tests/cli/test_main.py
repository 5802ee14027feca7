"""The entry point: help is cheap, wrong use is one line, every command named is there."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import __version__
from posttrain.cli.main import COMMANDS, execute
from posttrain.core.paths import LabPaths

HEAVY = ("fastapi", "uvicorn", "httpx", "torch", "numpy", "transformers", "pydantic_settings", "yaml")


def run(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "posttrain", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **environ},
        timeout=60,
    )


def test_help_imports_nothing_heavy() -> None:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "posttrain", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {line.rsplit("|", 1)[-1].strip() for line in shown.stderr.splitlines() if "|" in line}
    assert "posttrain.cli.main" in modules
    assert not {name for name in modules if name.split(".")[0] in HEAVY}


def test_help_costs_less_than_four_tenths_of_a_second() -> None:
    run("--help")  # fills the caches of compiled files
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.4


def test_help_names_every_command() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for name, entry in COMMANDS.items():
        assert name in shown.stdout
        assert entry.help.split(":")[0].split(",")[0] in " ".join(shown.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_first_what_the_root_help_says(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert execute([name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"posttrain {name}" in shown
    assert COMMANDS[name].help in shown


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"posttrain {__version__}\n"


def test_no_arguments_show_the_help_and_are_wrong_use() -> None:
    shown = run()
    assert shown.returncode == 2
    assert "Usage: posttrain" in shown.stdout + shown.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lits"], "Did you mean 'list'?"),
        (["--nope"], "--nope"),
        (["list"], "what"),
        (["list", "people"], "'what': 'people' is not one of 'tasks', "),
        (["run", "--protocol", "opne"], "'--protocol': 'opne' is not one of 'holdout', 'open'"),
        (["blueprint", "check", "none.md"], "posttrain: none.md: No such file or directory"),
        (["list", "tasks", "--nope"], "--nope"),
        (["show", "no-such-run"], "no run 'no-such-run'"),
        (["show", "../x"], "no run '../x'"),
        (["logs", "*"], "no run '*'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    home = tmp_path / "home"
    shown = run(*arguments, cwd=tmp_path, POSTTRAIN_HOME=str(home))
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert shown.stderr.count("\n") == 1
    assert says in shown.stderr
    assert not home.exists()


def test_a_broken_dotenv_line_is_named_and_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("GOOD=1\nthis is no assignment\n")
    shown = run("list", "tasks", cwd=tmp_path)
    assert shown.returncode == 2
    assert ".env, line 2" in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert run("--help", cwd=tmp_path).returncode == 0


def test_dotenv_sets_the_lab_home(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text('POSTTRAIN_HOME="my lab"\n')
    environ = {name: value for name, value in os.environ.items() if name != "POSTTRAIN_HOME"}
    shown = subprocess.run(
        [sys.executable, "-m", "posttrain", "show", "nothing"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environ,
    )
    assert str(tmp_path / "my lab") in shown.stderr


def test_a_lab_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    shown = run("list", "runs", POSTTRAIN_HOME=str(tmp_path / "home"))
    assert shown.returncode == 2
    assert "POSTTRAIN_HOME" in shown.stderr


def test_a_closed_pipe_is_no_traceback() -> None:
    shown = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m posttrain list agents --json | head -c 1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in shown.stderr


def test_an_agent_whose_extra_is_missing_is_refused_before_anything_happens(
    lab: LabPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTTRAIN_HOME", str(lab.home))
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were not installed
    asked = [
        "run",
        "--agent",
        "sweep",
        "--task",
        "boolean",
        "--model",
        "smollm2-135m",
        "--engine",
        "scripted",
    ]
    assert execute(asked) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "posttrain: the agent sweep needs the extra 'sweep': pip install 'posttrain[sweep]'"
    assert not lab.runs.exists()
