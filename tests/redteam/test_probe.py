"""The probe agent in every isolation: what it may not do it cannot do, and it would notice if it could."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from posttrain.infra.levels import Levels, probe_levels
from posttrain.infra.processes import Spawner
from posttrain.infra.sandbox import PACKAGE

from .ordinary_user import as_ordinary_user

PROBE = Path(__file__).parent / "probe"
USERS = ["root", "ordinary"]

# the probe leaves these open at level none whoever runs it: proof that it finds what is there
OPEN_AT_NONE = {
    *("read_lab_home", "read_own_ledger", "read_other_run", "read_private_split", "read_env_file"),
    *("read_private_split_through_a_link", "hard_link_private_split", "read_operator_home", "read_host_tmp"),
    *("read_task_sources", "write_model", "write_data", "attach_shared_memory", "read_session_key"),
    *("connect_tmux", "connect_docker", "connect_abstract_socket", "connect_host_loopback"),
}
OPEN_AT_NONE_FOR_ROOT = OPEN_AT_NONE | {
    *(
        "read_shadow",
        "write_python_prefix",
        "write_package",
        "write_etc",
        "write_system",
        "write_core_pattern",
    ),
    *("write_sysctl", "mount_something", "make_device", "set_clock", "set_hostname", "hold_capabilities"),
    *("become_another_user", "change_root", "raise_priority", "open_raw_socket", "write_sysfs"),
}
OPEN_WITH_THE_HOSTS_NETWORK = {"connect_host_loopback", "reach_internet"}

GOLDEN = {
    "/": ["bin", "dev", "etc", "lib", "opt", "proc", "run", "sbin", "sys", "tmp", "usr", "var"],
    "/dev": [
        *("core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"),
        *("tty", "urandom", "zero"),
    ],
    "/run": ["posttrain"],
    "/var": ["tmp"],
    "/var/tmp": [],
    "/sys": ["devices"],
    "FOLDER": ["home", "launch"],
    "FOLDER/home": [],
    "FOLDER/launch": ["lab"],
    "FOLDER/launch/lab": ["runs"],
    "FOLDER/launch/lab/runs/boolean/1_probe": ["workspace"],
    "FOLDER/launch/lab/runs/boolean/1_probe/workspace": ["data", "models", "output"],
}
"""With network `grader`, no GPU, and FOLDER for the operator's part of the machine."""


@dataclass(frozen=True)
class Report:
    folder: str
    outcomes: dict[str, str]
    seen: dict[str, list[str]]

    @property
    def done(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "done"}


Run = Callable[..., Report]


@pytest.fixture(scope="module")
def levels() -> Levels:
    with Spawner() as spawner:
        return probe_levels(spawner)


@pytest.fixture(scope="module")
def run_probe(levels: Levels) -> Run:
    """Runs the probe once per (user, level, network)."""

    @cache
    def run(user: str, level: str, network: str, without: str = "") -> Report:
        if level == "bwrap" and levels.why_no_bwrap:
            pytest.skip(levels.why_no_bwrap)
        if user == "root" and os.getuid() != 0:
            pytest.skip("not root")
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        folder = tempfile.mkdtemp(prefix="posttrain-probe-")
        try:
            return report(user, level, network, folder, without)
        finally:
            shutil.rmtree(folder)

    return run


def report(user: str, level: str, network: str, folder: str, without: str) -> Report:
    Path(folder).chmod(0o777)
    argv = [sys.executable, str(PROBE / "surroundings.py"), level, network, folder, without]
    result = subprocess.run(
        as_ordinary_user(*argv) if user == "ordinary" else argv,
        env={"PATH": os.environ["PATH"], "HOME": folder, "OPERATOR_TOKEN": "the-secret-of-the-lab"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return Report(folder=folder, **json.loads(result.stdout))


@pytest.mark.parametrize("user", USERS)
def test_nothing_forbidden_succeeds_behind_the_grader_network(run_probe: Run, user: str) -> None:
    found = run_probe(user, "bwrap", "grader")
    assert len(found.outcomes) >= 30
    assert found.done == set()


@pytest.mark.parametrize("user", USERS)
def test_the_hosts_network_opens_the_network_and_nothing_else(run_probe: Run, user: str) -> None:
    assert run_probe(user, "bwrap", "host").done <= OPEN_WITH_THE_HOSTS_NETWORK


@pytest.mark.parametrize(
    ("user", "defence", "opened"),
    [
        ("ordinary", "network", {"connect_host_loopback", "reach_internet"}),
        ("ordinary", "ipc", {"attach_shared_memory"}),
        ("root", "cover", {"read_task_sources"}),
        ("root", "seal", {"connect_abstract_socket", "read_session_key"}),
        ("root", "identity", {"hold_capabilities", "write_core_pattern", "mount_something", "read_shadow"}),
        ("ordinary", "read-only", {"write_model", "write_data", "replace_data"}),
    ],
)
def test_every_wall_is_needed(run_probe: Run, user: str, defence: str, opened: set[str]) -> None:
    network = "host" if defence == "seal" else "grader"
    found = run_probe(user, "bwrap", network, defence)
    assert {name: found.outcomes[name] for name in opened - found.done} == {}


@pytest.mark.parametrize(("user", "expected"), [("root", OPEN_AT_NONE_FOR_ROOT), ("ordinary", OPEN_AT_NONE)])
def test_at_level_none_the_same_things_are_open(run_probe: Run, user: str, expected: set[str]) -> None:
    found = run_probe(user, "none", "host")
    assert {name: found.outcomes[name] for name in expected - found.done} == {}


@pytest.mark.parametrize("user", USERS)
def test_at_level_none_the_processes_of_the_host_are_out_of_reach(run_probe: Run, user: str) -> None:
    names = {
        "see_harness",
        "read_environment_of_others",
        "signal_harness",
        "trace_harness",
        "kill_supervisor",
    }
    assert run_probe(user, "none", "host").done & names == set()


@pytest.mark.parametrize("user", USERS)
def test_what_is_seen_is_the_golden_list(run_probe: Run, user: str) -> None:
    found = run_probe(user, "bwrap", "grader")
    shown = {Path(path).parts[1] for path in (sys.prefix, sys.base_prefix, PACKAGE, found.folder)}
    optional = shown | {"lib32", "lib64", "libx32", Path(found.folder).name}
    seen = {
        path.replace(found.folder, "FOLDER"): [name for name in names if keeps(path, name, optional)]
        for path, names in found.seen.items()
    }
    assert {path: seen[path] for path in GOLDEN} == {
        path: [name for name in names if keeps(path, name, optional)] for path, names in GOLDEN.items()
    }


def keeps(path: str, name: str, optional: set[str]) -> bool:
    """False for what depends on the machine: where Python and the repository lie, and GPUs."""
    return not (path == "/" and name in optional) and not name.startswith("nvidia")
