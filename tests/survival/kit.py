"""Real harness processes to kill, and a look at what they leave: on the disk and in the process table.

Nothing of ours is patched. A phase is made long by what a run is made of (a script that answers slowly, a
task that prepares slowly, a lock that somebody else holds), and a test strikes when a row or a file appears.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunRecord
from posttrain.reports.results import ResultRow, read_results
from posttrain.runs.verification import verify_run
from posttrain.testing.agents import write_toy_agent

Step = Mapping[str, Any]
AFTERWARDS_S = 15.0
"""So long after the harness has died nothing of the run may live."""


def version(number: int, accuracy: float, *, delay_s: float = 0.0, **request: Any) -> list[Step]:
    """Steps that hand in a checkpoint of its own content, which takes `delay_s` to answer."""
    folder = f"output/v{number}"
    script = {"accuracy": accuracy, "seed": number, "delay_s": delay_s}
    return [
        {"do": "copy_base", "to": folder},
        {"do": "write", "to": f"{folder}/scripted.json", "data": script},
        {"do": "submit", "model_path": folder, **request},
    ]


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Story:
    """One run as its folder tells it now."""

    paths: RunPaths

    def rows(self, *kinds: str) -> list[dict[str, Any]]:
        """Complete rows of the ledger, of some kinds or of all."""
        try:
            lines = self.paths.ledger.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines]
        return [row for row in found if not kinds or row["kind"] in kinds]

    def has(self, kind: str) -> bool:
        return bool(self.rows(kind))

    @property
    def record(self) -> RunRecord:
        return RunRecord.model_validate_json(self.paths.record.read_bytes())

    @property
    def run_log(self) -> str:
        return self.paths.run_log.read_text("utf-8")

    def answers(self) -> list[dict[str, Any]]:
        """What the toy agent was told, in order."""
        path = self.paths.workspace.code / "answers.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def content(self) -> dict[str, tuple[bytes, int]]:
        """Bytes and time of change of every file, to see that nothing was touched."""
        files = (path for path in self.paths.root.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@dataclass
class Harness:
    """A running `posttrain` command, the leader of a process group of its own."""

    process: subprocess.Popen[str]
    lab: LabPaths
    seen: set[psutil.Process] = field(default_factory=set)

    def until(self, condition: Callable[[], Any], *, within_s: float = 60.0) -> None:
        """Return the moment `condition` holds; fail if the command ends first or time runs out."""
        deadline = time.monotonic() + within_s
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}: {self._said()}")
            assert time.monotonic() < deadline, f"waited for {within_s} s"
            time.sleep(0.0005)

    def _said(self) -> str:
        return "".join(self.process.communicate())

    def story(self) -> Story:
        """The run that this command works on, as soon as it has a folder."""
        self.until(lambda: list(self.lab.runs.glob("*/*/request.json")))
        return stories(self.lab)[-1]

    def strike(self, number: int = signal.SIGKILL) -> None:
        """Remember the whole tree, then signal the harness alone."""
        leader = psutil.Process(self.process.pid)
        self.seen |= {leader, *leader.children(recursive=True)}
        self.process.send_signal(number)

    def end(self, *, within_s: float = 60.0) -> Ended:
        """How it ended by itself or by what was sent."""
        stdout, stderr = self.process.communicate(timeout=within_s)
        return Ended(self.process.returncode, stdout, stderr)

    def left(self, *, within_s: float = AFTERWARDS_S) -> list[str]:
        """What lives of the tree, and what else has to do with this lab home, after so many seconds."""
        deadline = time.monotonic() + within_s
        while alive := [process for process in self._all() if _lives(process)]:
            if time.monotonic() > deadline:
                return [_shown(process) for process in alive]
            time.sleep(0.05)
        return []

    def _all(self) -> set[psutil.Process]:
        return {*self.seen, *(process for process in psutil.process_iter() if self._is_ours(process))}

    def _is_ours(self, process: psutil.Process) -> bool:
        home = str(self.lab.home)
        try:
            texts = [*process.cmdline(), process.cwd(), *process.environ().values()]
        except (psutil.Error, OSError):
            return False
        return process.pid != os.getpid() and any(home in text for text in texts)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _shown(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    except psutil.Error:
        return str(process.pid)


@dataclass(frozen=True)
class Site:
    """A lab home, a base model beside it, and the command line."""

    lab: LabPaths
    base: Path

    def agent(self, steps: Sequence[Step], *, name: str = "toy", **config: Any) -> None:
        write_toy_agent(self.lab.agents, name, steps, **config)

    def begin(
        self,
        *options: str,
        task: str = "boolean",
        timeout: str = "60",
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Harness:
        """Start a run of the agent `toy`."""
        words = ("--agent", "toy", "--task", task, "--model", str(self.base), "--engine", "scripted")
        return self.start(
            *("run", *words, "--limit", "40", "--timeout", timeout, "--port", "0", *options),
            env=env,
            prefix=prefix,
        )

    def resume(self, story: Story, *options: str, env: Mapping[str, str] | None = None) -> Ended:
        """Resume to the end."""
        return self.start("run", "--resume", story.paths.run_id, *options, env=env).end()

    def start(
        self, *arguments: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> Harness:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "posttrain", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.lab.home.parent,
            env={**os.environ, "POSTTRAIN_HOME": str(self.lab.home), **(env or {})},
            start_new_session=True,
        )
        return Harness(process, self.lab)

    def row(self, story: Story) -> ResultRow:
        """The run's row in results.csv: there is exactly one."""
        found = read_results(self.lab.results_csv)
        assert found.faults == ()
        (row,) = [row for row in found.rows if row.run_id == story.paths.run_id]
        return row

    def assert_whole(self, story: Story) -> None:
        """Every number has one acceptance and one verdict, one test was made, and all exports follow."""
        accepted = [row["data"]["submission_id"] for row in story.rows("accepted")]
        graded = [row["data"]["submission_id"] for row in story.rows("graded")]
        copied = [row["data"]["submission_id"] for row in story.rows("copied")]
        assert accepted == list(range(1, len(accepted) + 1))
        assert sorted(graded) == accepted
        assert len(copied) == len(set(copied))
        assert len(story.rows("tested")) == 1
        assert len(story.rows("closed")) == 1 + sum(
            row["data"]["status"] in ("interrupted", "error") for row in story.rows("closed")[:-1]
        )
        faults = [fault for check in verify_run(story.paths, self.lab) for fault in check.faults]
        assert faults == []
        row = self.row(story)
        assert (row.status, row.ledger_head) == (story.record.status.value, story.record.ledger_head)
        assert [path.name for path in story.paths.root.rglob("*.tmp")] == []


def stories(lab: LabPaths) -> list[Story]:
    """All runs of a lab, in order of their start."""
    return [Story(RunPaths(path)) for path in sorted(lab.runs.glob("*/*"), key=lambda path: path.name)]


def unix(row: Mapping[str, Any]) -> float:
    """When a row of the ledger was written."""
    return datetime.fromisoformat(row["time"]).timestamp()


@contextmanager
def somebody_elses_lock(path: Path) -> Iterator[None]:
    """Hold a lock file from another process's point of view."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path):
        yield
