"""Processes that nobody is meant to find, and submissions that come too late."""

import os
import shutil
import signal
import subprocess
import sys
import time

from kit import WORKSPACE, make, play, request, submit, tell

LATE = """
import pathlib, signal, sys, time
if sys.argv[2:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3000):
    pathlib.Path(sys.argv[1]).write_text(str(time.time()))
    time.sleep(0.02)
"""


def daemons(*how: str) -> None:
    """Double forks, new sessions, a terminal multiplexer, jobs for later."""
    make("v1", 0.6, seed=1)
    tell("answer", submit("v1"))
    beat = str(WORKSPACE / "code" / "beat")
    late = [sys.executable, "-c", LATE]
    subprocess.Popen([*late, f"{beat}1", *how], start_new_session=True)
    subprocess.Popen(
        ["bash", "-c", 'nohup setsid "$@" >/dev/null 2>&1 & disown', "-", *late, f"{beat}2", *how]
    )
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [*late, f"{beat}3", *how])
        os._exit(0)
    if shutil.which("tmux"):
        script = WORKSPACE / "code" / "late.py"
        script.write_text(LATE)
        socket = str(WORKSPACE / "code" / "tmux.sock")
        subprocess.run(
            ["tmux", "-S", socket, "new-session", "-d", f"{sys.executable} {script} {beat}4"], check=False
        )
    for scheduler in (["crontab", "-"], ["at", "now", "+", "1", "minute"], ["systemd-run", "--user", "true"]):
        if shutil.which(scheduler[0]):
            subprocess.run(scheduler, input=b"* * * * * true\n", check=False, capture_output=True)
    time.sleep(0.5)


def stubborn() -> None:
    """The same, deaf to SIGTERM."""
    daemons("stubborn")


def deadline() -> None:
    """Submissions until long after the end, and one that is under way at the deadline."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    make("v1", 0.6, seed=1)
    tell("first", submit("v1", wait=False))
    make("v2", 0.9, seed=2)
    time.sleep(max(0.0, float(os.environ["DEADLINE"]) - time.time() - 0.1))
    told = []
    while True:
        told.append(request("POST", "/submit", {"model_path": "output/v2", "wait": False})[0])
        tell("late", told)
        time.sleep(0.1)


play(daemons, stubborn, deadline)
