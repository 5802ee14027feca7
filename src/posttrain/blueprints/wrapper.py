"""Runs one attempt of an experiment inside its session: `python -m posttrain.blueprints.wrapper FOLDER`.

It belongs to the session, not to the executor: it holds the log, the status file, the limit and the
process tree of the command, whether or not anybody watches. Standard library only, so that it starts at
once, stays small, and can be sent to another machine.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from posttrain.blueprints.activity import Activity
from posttrain.blueprints.attempt import AttemptPaths, boot_id, read_json, replace_json
from posttrain.blueprints.command import CommandTree, cpu_seconds
from posttrain.blueprints.output import Output
from posttrain.infra.supervisor import stat_fields

_POLL_S = 1.0
_LAST_GRACE_S = 3.0
_WORKING_SHARE = 0.1
"""What was left behind and uses more of a core than this was working, not waiting."""


class Wrapper:
    """One attempt, from start to its last status."""

    def __init__(self, paths: AttemptPaths, job: dict[str, Any]) -> None:
        self._paths = paths
        self._job = job
        self._grace_s = float(job["grace_s"])
        self._deadline = _clock() + (float(job["deadline"]) - time.time())
        self._kill_at = float("inf")
        self._signalled = ""
        self._cause = ""
        self._output = Output(paths.log)
        self._activity = Activity(self._output, sample_s=float(job["sample_s"]))
        self._poll = select.poll()
        self._status: dict[str, Any] = {
            "wrapper_pid": os.getpid(),
            "wrapper_start": stat_fields(os.getpid())[19],
            "boot_id": boot_id(),
            "started_at": time.time(),
            "leftovers": [],
            "leftovers_busy": False,
        }

    def run(self) -> None:
        """Start the command, see it to its end, and write the last status."""
        self._take_signals()
        try:
            self._command = CommandTree(
                self._paths.launch,
                cwd=self._paths.folder,
                env=self._job["env"],
                namespace=bool(self._job["namespace"]),
            )
        except OSError as error:
            self._output.say(f"cannot start: {error}")
            self._write("ended", cause="launch_error", exit_code=None, durable=True)
            return
        self._write("running", durable=True)
        self._watch()
        clean = self._command.kill()
        self._output.take(self._command.output)
        self._conclude(clean=clean)

    def _watch(self) -> None:
        self._poll.register(self._command.output, select.POLLIN)
        self._poll.register(self._command.report, select.POLLIN)
        while self._command.exit_code is None and _clock() < self._kill_at:
            self._tick()
        if self._command.exit_code is not None:
            self._wait_for_leftovers()

    def _tick(self) -> None:
        """Up to a second: move output, take the exit code, obey orders, keep the status fresh."""
        timeout_s = max(0.0, min(_POLL_S, float(self._job["sample_s"]), self._deadline - _clock()))
        for descriptor, event in self._poll.poll(timeout_s * 1000):
            if descriptor == self._command.output:
                self._output.take(descriptor)
            else:
                self._command.read_report()
            if not event & select.POLLIN or descriptor == self._command.report:
                self._poll.unregister(descriptor)  # at its end it would be ready for ever
        self._obey()
        if self._activity.sample(self._command):
            self._write("ending" if self._cause else "running", durable=False)

    def _obey(self) -> None:
        """End the command at the limit, when told to, or when the session is closed."""
        if self._cause:
            return
        if self._signalled:
            self._end(self._signalled, "the session was closed or interrupted")
        elif self._paths.stop.exists():
            reason = (read_json(self._paths.stop) or {}).get("reason", "user")
            self._end(f"stop:{reason}", f"asked to stop ({reason})")
        elif _clock() >= self._deadline:
            self._deadline = float("inf")
            self._end("timeout", "the time limit is reached")

    def _end(self, cause: str, why: str) -> None:
        if self._command.exit_code is not None and cause == "timeout":
            return  # the command was faster than its limit; only what it left behind is waited for
        self._cause = cause
        self._kill_at = _clock() + self._grace_s
        self._output.say(f"{why}: ending the command")
        self._command.terminate()

    def _wait_for_leftovers(self) -> None:
        """Give what the command left running a moment to end; note its name and whether it was working."""
        began, cpu_s, size = _clock(), cpu_seconds(self._command.members()), self._output.bytes
        self._wait_until_empty(began + float(self._job["linger_s"]))
        left = self._command.leftovers()
        if not left or self._cause:  # ended by us: what has not obeyed SIGTERM by now is killed
            return
        used_s = cpu_seconds(self._command.members()) - cpu_s
        busy = used_s > _WORKING_SHARE * (_clock() - began) or self._output.bytes > size
        names = [process.command for process in left]
        self._status.update(leftovers=names, leftovers_busy=busy)
        self._output.say(f"the command has ended but left {len(names)} process(es) running: ending them")
        self._command.terminate()
        self._wait_until_empty(_clock() + min(_LAST_GRACE_S, self._grace_s))

    def _wait_until_empty(self, until: float) -> None:
        while _clock() < min(until, self._kill_at) and self._command.leftovers():
            self._tick()

    def _conclude(self, *, clean: bool) -> None:
        code = self._command.exit_code
        cause = self._cause or "exit"
        if not clean:
            self._output.say("some processes could not be ended")
        self._output.say(f"ended: {cause}, exit code {code}")
        self._output.close()
        self._write("ended", cause=cause, exit_code=code, clean=clean, durable=True)

    def _write(self, phase: str, *, durable: bool, **more: Any) -> None:
        self._status.update(
            phase=phase,
            kill_mode=self._command.kill_mode if hasattr(self, "_command") else None,
            written_at=time.time(),
            idle_s=round(self._activity.idle_s, 1),
            output_bytes=self._output.bytes,
            lost_bytes=self._output.lost,
            **more,
        )
        if phase == "ended":
            self._status["ended_at"] = time.time()
        try:
            replace_json(self._paths.status, self._status, durable=durable)
        except OSError as error:  # disk full: the log may still have room for a line
            self._output.say(f"cannot write the status: {error}")

    def _take_signals(self) -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self._signalled = self._signalled or ("hangup" if number == signal.SIGHUP else "interrupt")


def _clock() -> float:
    """Seconds that nobody can set, and that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main(folder: str) -> int:
    """Run the attempt in `folder` once, however often this is started."""
    paths = AttemptPaths(Path(folder))
    with paths.claim.open("a", encoding="utf-8") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 3
        status, job = read_json(paths.status), read_json(paths.job)
        if job is None or (status or {}).get("phase") == "ended":
            return 3
        Wrapper(paths, job).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
