"""Experiments on another machine, over a stand-in for ssh that can lose its connection."""

from __future__ import annotations

import ast
import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import posttrain
from blueprints.bench import Bench, assert_documents, events, needs_tmux, running, wait_until
from posttrain.blueprints import ssh
from posttrain.blueprints.machine import Unreachable
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.readiness import Readiness
from posttrain.blueprints.ssh import SshMachine

pytestmark = needs_tmux

_SSH = """#!/bin/bash
# options as ssh takes them, also behind the host; then a command for the login shell there
while [ $# -gt 0 ]; do
  case $1 in
    -o|-p|-i|-l) shift 2 ;;
    -*) shift ;;
    *) if [ -z "$host" ]; then host=$1; shift; else break; fi ;;
  esac
done
echo "$host" >> {folder}/hosts
if [ -e {folder}/down ]; then echo "ssh: connect to host $host: No route to host" >&2; exit 255; fi
export HOME={folder}/remote-home
cd "$HOME" && exec env -i HOME="$HOME" PATH="{path}" bash -c "$*"
"""


@pytest.fixture
def remote(bench: Bench) -> SshMachine:
    """A machine that is this one under another home."""
    folder = bench.root / "ssh"
    (folder / "remote-home").mkdir(parents=True)
    program = folder / "ssh"
    program.write_text(_SSH.format(folder=shlex.quote(str(folder)), path=bench.env["PATH"]))
    program.chmod(0o755)
    bench.env["PATH"] = f"{folder}:{bench.env['PATH']}"
    return SshMachine("root@far -p 8824", env=bench.env, control=folder / "c")


def test_an_experiment_runs_there_and_reports_there(bench: Bench, remote: SshMachine) -> None:
    source = bench.blueprint('echo home is $HOME; echo "secret ${OPENAI_API_KEY:-none}"')

    ran = bench.run(source, machine=remote)

    assert ran.exit_code == 0
    report = assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert report["machine"] == "root@far -p 8824"
    log = bench.results().log(1).read_text("utf-8")
    assert f"home is {bench.root}/ssh/remote-home" in log
    assert (bench.root / "ssh" / "remote-home" / ".posttrain" / "blueprints").is_dir()


def test_a_lost_connection_is_unknown_and_the_experiment_goes_on(bench: Bench, remote: SshMachine) -> None:
    down = bench.root / "ssh" / "down"
    marker = "sleep\0002.0713"
    source = bench.blueprint("sleep 2.0713; echo done")
    with ThreadPoolExecutor() as threads:
        executor = threads.submit(bench.run, source, machine=remote)
        bench.session(source)
        wait_until(lambda: running(marker))

        down.touch()
        attempt = StatePaths(Path("/x") / bench.state(source).name).attempt(1)
        assert remote.probe(attempt).state == "unknown"
        wait_until(lambda: not running(marker))
        assert not executor.done()
        down.unlink()

    assert executor.result().exit_code == 0
    report = assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert len(report["attempts"]) == 1


def test_wait_on_a_remote_experiment_tells_2_while_the_connection_is_lost(
    bench: Bench, remote: SshMachine
) -> None:
    source = bench.blueprint("sleep 600")
    executor = bench.posttrain("blueprint", "run", "--ssh", "root@far", source)
    name = bench.session(source).name

    assert bench.call("wait", name, "0.2")[0] == 0
    (bench.root / "ssh" / "down").touch()
    assert bench.call("wait", name, "5")[0] == 2
    (bench.root / "ssh" / "down").unlink()

    assert bench.call("blueprint", "stop", source)[0] == 0
    executor.communicate(timeout=60)
    assert bench.call("wait", name, "5")[0] == 1


def test_the_limit_is_kept_there(bench: Bench, remote: SshMachine) -> None:
    marker = "sleep\00071.0714"

    ran = bench.run(bench.blueprint("sleep 71.0714", limit="2s"), machine=remote)

    assert ran.exit_code == 0
    assert_documents(bench.results(), outcome="timeout", reason="time_limit")
    assert running(marker) == []


@pytest.mark.slow
def test_repairs_are_made_there(bench: Bench, remote: SshMachine) -> None:
    bench.script("open('out/log.txt', 'w').write('x')")

    ran = bench.run(bench.blueprint("python train.py"), machine=remote, tmux=False)

    assert ran.exit_code == 0
    assert any("missing_folder" in text for text in events(bench.results()))


def test_files_and_facts_agree_with_this_machine(bench: Bench, remote: SshMachine) -> None:
    here = bench.machine()
    folder = bench.root / "a 'folder' with $signs;"
    remote.write(folder / "file", b"0123456789\n", mode=0o600)

    assert (folder / "file").stat().st_mode & 0o777 == 0o600
    for machine in (here, remote):
        assert machine.read(folder / "file") == b"0123456789\n"
        assert machine.read(folder / "file", offset=3, limit=4) == b"3456"
        assert machine.read(folder / "none") is None
        assert machine.read(folder) is None
        assert machine.has_program("bash")
        assert not machine.has_program("no-such-program")
        assert not machine.in_use(folder / "file")
        assert not machine.answers(Readiness(kind="port", port=1))
        assert machine.gpu_count() == here.gpu_count()
    for path in (folder, folder / "file", folder / "new" / "deep", Path("/proc/x"), Path("/usr/bin/env")):
        assert remote.facts(path) == here.facts(path)
    with (folder / "file").open():
        assert remote.in_use(folder / "file")
    remote.move(folder / "file", folder / "b" / "moved")
    remote.copy(folder / "b" / "moved", folder / "copy", limit=3)
    assert (folder / "copy").read_bytes() == b"89\n"
    remote.remove(folder / "copy")
    assert not (folder / "copy").exists()


def test_writing_where_that_is_impossible_is_told(remote: SshMachine) -> None:
    with pytest.raises(OSError, match="proc"):
        remote.write(Path("/proc/x/y"), b"")


def test_a_machine_out_of_reach_is_told_with_ssh_s_own_words(bench: Bench, remote: SshMachine) -> None:
    (bench.root / "ssh" / "down").touch()

    with pytest.raises(Unreachable, match="No route to host"):
        remote.facts(Path("/"))
    code, _, told = bench.call("blueprint", "check", "--ssh", "far", bench.blueprint("x"))
    assert code == 1
    assert "No route to host" in told


def test_what_is_sent_there_needs_no_new_python() -> None:
    for name in ssh.SENT:
        source = (Path(posttrain.__file__).parent / name).read_text("utf-8")
        ast.parse(source, feature_version=(3, 9))


@pytest.mark.slow
def test_a_remote_experiment_survives_its_executor(bench: Bench, remote: SshMachine) -> None:
    source = bench.blueprint("echo x >> starts; sleep 3")
    executor = bench.posttrain("blueprint", "run", "--ssh", "far", source)
    bench.session(source)
    executor.kill()
    executor.communicate()

    code, out, _ = bench.call("blueprint", "run", "--ssh", "far", source, "--json")

    assert code == 0
    assert json.loads(out)[0]["outcome"] == "succeeded"
    assert (bench.code / "starts").read_text() == "x\n"
