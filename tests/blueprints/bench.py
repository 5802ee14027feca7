"""A small lab for experiments: a code folder, a tmux server of its own, an executor with short intervals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from posttrain.blueprints.batch import Ran, run_one
from posttrain.blueprints.local import LocalMachine
from posttrain.blueprints.machine import Machine, Wake
from posttrain.blueprints.paths import ResultPaths, StatePaths
from posttrain.blueprints.policy import Policy
from posttrain.blueprints.rules import RuleBook
from posttrain.blueprints.setting import Setting
from posttrain.blueprints.state import State, experiment_name, load_state
from posttrain.infra.tmux import Session, Tmux

_T = TypeVar("_T")
FAST = Policy(
    first_look_s=0.2,
    longest_look_s=0.5,
    stuck_after_s=60.0,
    grace_s=0.5,
    linger_s=0.5,
    sample_s=0.2,
    start_within_s=20.0,
    service_within_s=10.0,
)
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

_TEXT = """# An experiment
1. [exp_purpose] {purpose}
2. [exp_codebase_dir] {code}
3. [exp_venv_exe] {python}
4. [exp_yaml_path] config.yaml
5. [exp_launch_command]
```bash
{command}
```
6. [exp_result_dir] {results}
7. [exp_max_time] {limit}
{more}
"""


@dataclass
class Bench:
    """Blueprints that can be run at once; everything lies below `root`."""

    root: Path
    env: dict[str, str]
    told: list[str] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def home(self) -> Path:
        return self.root / "home" / "blueprints"

    def script(self, text: str, *, name: str = "train.py") -> None:
        """Put a program into the code folder."""
        (self.code / name).write_text(text, "utf-8")

    def blueprint(
        self,
        command: str,
        *,
        limit: str = "60s",
        results: Path | None = None,
        yaml: str = "lr: 0.1\n",
        name: str = "blueprint",
        purpose: str = "try something",
        more: str = "",
    ) -> Path:
        """Write a blueprint file (and the YAML, with a comment that names it)."""
        (self.code / "config.yaml").write_text(yaml, "utf-8")
        path = self.root / f"{name}.md"
        text = _TEXT.format(
            purpose=purpose,
            code=self.code,
            python=sys.executable,
            command=command if "config.yaml" in command else f": config.yaml\n{command}",
            results=results or self.results(name).root,
            limit=limit,
            more=more,
        )
        path.write_text(text, "utf-8")
        return path

    def results(self, name: str = "blueprint") -> ResultPaths:
        return ResultPaths(self.root / "results" / name)

    def state_paths(self, source: Path) -> StatePaths:
        return StatePaths(self.home / experiment_name(source))

    def state(self, source: Path) -> State:
        state = load_state(self.state_paths(source))
        assert state is not None
        return state

    def tmux(self) -> Tmux:
        return Tmux(env=self.env)

    def session(self, source: Path) -> Session:
        """The session in which the experiment runs, once it is there."""
        state = wait_until(lambda: self._with_session(source))
        assert state.session is not None
        return state.session

    def _with_session(self, source: Path) -> State | None:
        state = load_state(self.state_paths(source))
        return state if state and state.session else None

    def machine(self) -> Machine:
        return LocalMachine(env=self.env)

    def setting(
        self, *, policy: Policy = FAST, tmux: bool = True, wake: Wake | None = None, **more: Any
    ) -> Setting:
        machine = more.pop("machine", None) or self.machine()
        return Setting(
            machine=machine,
            here=self.machine(),
            tmux=self.tmux() if tmux else None,
            repairers=more.pop("repairers", (RuleBook(machine),)),
            policy=policy,
            wake=wake or Wake(),
            tell=self.told.append,
            **more,
        )

    def run(self, source: Path, **setting: Any) -> Ran:
        """Run to the end in this process."""
        ran = run_one(source, home=self.home, setting=self.setting(**setting))
        assert ran is not None
        return ran

    def posttrain(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """The command line in a process of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "posttrain", *map(str, arguments)],
            env=self.env,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what a failed test has left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
        if shutil.which("tmux"):
            subprocess.run(["tmux", "kill-server"], env=self.env, capture_output=True, check=False)

    def call(self, *arguments: str | Path, timeout: float = 60) -> tuple[int, str, str]:
        """(exit code, standard output, standard error) of the command line."""
        process = self.posttrain(*arguments)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err


def flag(results: ResultPaths) -> dict[str, Any]:
    """The finish flag."""
    loaded: dict[str, Any] = json.loads(results.flag.read_text("utf-8"))
    return loaded


def assert_documents(results: ResultPaths, *, outcome: str, reason: str) -> dict[str, Any]:
    """All documents are there and agree; returns result.json."""
    told = flag(results)
    report: dict[str, Any] = json.loads(results.result_json.read_text("utf-8"))
    assert (told["outcome"], told["reason"]) == (outcome, reason)
    assert (report["outcome"], report["reason"]) == (outcome, reason)
    assert f": {outcome}" in results.result.read_text("utf-8").splitlines()[0]
    assert results.trial_and_error.is_file()
    others = [path for path in results.own if path != results.flag and path.is_file()]
    assert all(path.stat().st_mtime_ns <= results.flag.stat().st_mtime_ns for path in others)
    return report


def wait_until(look: Callable[[], _T | None], *, seconds: float = 20.0) -> _T:
    """The first true value; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("did not happen in time")


def running(marker: str) -> list[int]:
    """Processes whose command line contains the marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in words and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def line_of(text: str, part: str) -> int:
    """The number of the first line that contains `part`."""
    return next(number for number, line in enumerate(text.splitlines(), start=1) if part in line)


def events(results: ResultPaths) -> Sequence[str]:
    """The timeline's texts."""
    return [event["text"] for event in json.loads(results.result_json.read_text("utf-8"))["events"]]
