"""The command of an experiment as a process tree that can be ended completely. Standard library only.

With bubblewrap the tree has a pid namespace of its own, and nothing in it outlives this process; without,
a subreaper and a kill loop do the work (`best-effort`). A small shell stands between the namespace's first
process and the command: it reports the exit code and then waits, so that what the command left running
can be seen before the namespace is closed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.infra.supervisor import descendants, prctl, signal_once, stat_fields

_PR_SET_CHILD_SUBREAPER = 36
_GATE = """trap : TERM INT HUP
echo ready >&"$1"; read -r _ <&"$2"
eval "bash \\"\\$3\\" $1>&- $2<&-"
echo "code $?" >&"$1"; read -r _ <&"$2"
"""
_NAMESPACE = ("--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--die-with-parent", "--")
_EMPTY_WITHIN_S = 5.0
_TICK_S = 0.02

Process = tuple[int, str]
"""(pid, start time): a pid alone may have been given to another process."""


@dataclass(frozen=True)
class Leftover:
    """A process that the command left running."""

    pid: int
    command: str


class CommandTree:
    """Starts a script; tells its exit code and what it left; ends all of it."""

    def __init__(self, script: Path, *, cwd: Path, env: Mapping[str, str], namespace: bool) -> None:
        self._script = script
        self._cwd = cwd
        self._env = dict(env)
        self.exit_code: int | None = None
        self.pid = 0
        bwrap = shutil.which("bwrap", path=self._env.get("PATH"))
        self.kill_mode = "namespace"
        if namespace and bwrap and self._start((bwrap, *_NAMESPACE)):
            return
        self.kill_mode = "best-effort"
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if not self._start(()):
            raise OSError(f"cannot start bash for {script}")

    def _start(self, prefix: Sequence[str]) -> bool:
        """Start behind `prefix`; False if the gate never came up, which is how bwrap without rights ends."""
        report_out, report_in = os.pipe()
        gate_out, gate_in = os.pipe()
        argv = [*prefix, "bash", "-c", _GATE, "posttrain", str(report_in), str(gate_out), str(self._script)]
        self._process = subprocess.Popen(
            argv,
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(report_in, gate_out),
            start_new_session=True,
        )
        os.close(report_in)
        os.close(gate_out)
        self.report = report_out
        self._gate = gate_in
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()
        if os.read(self.report, 64).strip() != b"ready":
            self._process.wait()
            self._close()
            return False
        self.pid = self._process.pid
        self._own = {(pid, started) for pid, started in descendants(os.getpid())}
        os.write(self._gate, b"go\n")
        os.set_blocking(self.output, False)
        os.set_blocking(self.report, False)
        return True

    def _close(self) -> None:
        for descriptor in (self.report, self._gate):
            os.close(descriptor)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def members(self) -> list[Process]:
        """All processes of the command that are there now, without our own shell."""
        return [process for process in descendants(os.getpid()) if process not in self._own]

    def read_report(self) -> None:
        """Take the exit code if it has come; a shell that was killed itself counts as 137."""
        try:
            text = os.read(self.report, 64)
        except BlockingIOError:
            return
        if text.startswith(b"code "):
            self.exit_code = int(text.split()[1])
        elif not text and self.exit_code is None:
            self.exit_code = 128 + signal.SIGKILL

    def leftovers(self) -> list[Leftover]:
        """What is running although the command has ended."""
        return [Leftover(pid, _command_line(pid)) for pid, started in self.members() if _alive(pid, started)]

    def terminate(self) -> None:
        """SIGTERM to everything but our own shell; stopped processes are woken to act on it."""
        for pid, started in self.members():
            signal_once(pid, started, signal.SIGTERM)
            signal_once(pid, started, signal.SIGCONT)

    def kill(self) -> bool:
        """End all that is left; False if something could not be ended."""
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        if self.kill_mode == "namespace":
            self._process.kill()  # its death closes the namespace
            self._process.wait()
        while left := [process for process in descendants(os.getpid()) if _alive(*process)]:
            for pid, started in left:
                signal_once(pid, started, signal.SIGKILL)
            self._reap(pid for pid, _ in left)
            if time.monotonic() > deadline:
                return False
            time.sleep(_TICK_S)
        return True

    def _reap(self, pids: Iterable[int]) -> None:
        for pid in pids:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def cpu_seconds(processes: Iterable[Process]) -> float:
    """CPU time that these processes and their ended children have used."""
    ticks = 0
    for pid, _ in processes:
        fields = stat_fields(pid)
        if fields:
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _alive(pid: int, started: str) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[19] == started and fields[0] not in "ZX"


def _command_line(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()[:200] or "?"
