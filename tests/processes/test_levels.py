"""What the machine can give is found out, and what it cannot is said in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from posttrain.infra.levels import Levels, probe_levels
from posttrain.infra.processes import Spawner

SCRIPT = """
from posttrain.infra.levels import probe_levels
from posttrain.infra.processes import Spawner
with Spawner() as spawner:
    found = probe_levels(spawner)
print(found.kill_mode, found.best, found.why_no_bwrap, sep="|")
"""


def found_inside(*options: str) -> list[str]:
    """(kill mode, best level, reason) on a machine changed by options of bubblewrap."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    result = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", *options, "--", sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip().split("|")


def test_where_bubblewrap_works_it_is_picked(levels: Levels) -> None:
    if levels.why_no_bwrap:
        pytest.skip(levels.why_no_bwrap)
    with Spawner() as spawner:
        assert probe_levels(spawner) == Levels(kill_mode="namespace", why_no_bwrap=None)
        assert probe_levels(spawner).best == "bwrap"


def test_without_bubblewrap_best_effort_takes_over() -> None:
    mode, best, reason = found_inside("--ro-bind", "/dev/null", shutil.which("bwrap") or "/usr/bin/bwrap")
    assert (mode, best) == ("best-effort", "none")
    assert reason == "bubblewrap is not installed (package bubblewrap, program bwrap)"


@pytest.mark.skipif(os.getuid() != 0, reason="nothing to take away from an ordinary user")
def test_where_the_kernel_refuses_best_effort_takes_over() -> None:
    mode, best, reason = found_inside("--proc", "/proc", "--cap-drop", "ALL")
    assert (mode, best) == ("best-effort", "none")
    assert reason.startswith("bwrap: ")


@pytest.mark.skipif(os.getuid() != 0, reason="only root needs user ids to spare")
def test_root_without_user_ids_to_spare_has_namespaces_but_no_views() -> None:
    mode, best, reason = found_inside("--unshare-user")
    assert (mode, best) == ("namespace", "none")
    assert reason == "uid: this machine has no user id to spare (a container with too few of them?)"
