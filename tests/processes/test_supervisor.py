"""The supervisor's side of the protocol, spoken to directly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from posttrain.infra import supervisor

from .conftest import Commands, Mark


def test_signals_to_a_whole_namespace_are_for_its_first_process_alone() -> None:
    with pytest.raises(SystemExit, match="first process"):
        supervisor.NamespaceTree()


def test_a_harness_that_dies_without_reading_its_reports_leaves_nothing(
    commands: Commands, mark: Mark
) -> None:
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    argv = [sys.executable, "-I", "-S", supervisor.__file__, "best-effort", str(theirs.fileno())]
    process = subprocess.Popen(argv, pass_fds=(theirs.fileno(), null))
    theirs.close()
    os.close(null)
    command = commands.hostile("double_fork")
    specification = {
        **{"argv": list(command.argv), "cwd": str(command.cwd), "env": dict(command.env)},
        **{"limits": {}, "stdio": [null] * 3, "grace_s": 10.0, "sealed": False, "relay": None},
    }
    ours.sendall(json.dumps(specification).encode() + b"\n")
    commands.wait_for("ready")
    ours.close()
    assert process.wait(10) == 0
    assert mark.survivors() == []
