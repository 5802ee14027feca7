"""A grading that failed must not become a better grade."""

import os
import signal
import time

from kit import make, play, submit, tell


def crash() -> None:
    """A checkpoint that kills its worker each time; then the same content again, then an honest one."""
    make("v1", 1.0, seed=1, fault="crash", at="generate")
    tell("first", submit("v1"))
    tell("again", submit("v1"))
    make("v2", 0.6, seed=1)
    tell("answer", submit("v2"))


def kill() -> None:
    """Signals to everything in reach while a grading runs."""
    assert os.getpid() < 1000, "only ever inside a pid namespace"
    make("v1", 0.6, seed=1, delay_s=1.0)
    accepted = submit("v1", wait=False)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (-1, 1, *range(2, 3000)):
            if pid not in (os.getpid(), os.getppid()):
                try:
                    os.kill(pid, number)
                except OSError:
                    continue
    time.sleep(0.2)
    tell("accepted", accepted)


play(crash, kill)
