"""What a child gets, what it reports, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from posttrain.core.errors import InfrastructureError
from posttrain.infra.processes import Limits, Spawner

from .conftest import Commands, Mark


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -15)])
def test_the_exit_code_comes_through(spawner: Spawner, commands: Commands, script: str, code: int) -> None:
    with spawner.spawn(commands.bash(script), name="leader") as child:
        assert child.wait(10) == code
        assert child.poll() == code


def test_wait_gives_none_while_the_command_runs(spawner: Spawner, commands: Commands) -> None:
    with spawner.spawn(commands.bash("sleep 1000"), name="leader") as child:
        assert child.wait(0.05) is None
        assert child.poll() is None
        assert child.alive()


def test_lines_go_in_and_out(spawner: Spawner, commands: Commands) -> None:
    with spawner.spawn(commands.argv("cat", stdin="pipe", stdout="pipe"), name="cat") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in (b"one\n", b"two\n"):
            child.stdin.write(line)
            child.stdin.flush()
            assert child.stdout.readline() == line
        child.stdin.close()
        assert child.stdout.read() == b""
        assert child.wait(10) == 0


def test_standard_output_ends_with_the_command_though_a_daemon_lives_on(
    spawner: Spawner, commands: Commands
) -> None:
    script = "(trap '' TERM; exec sleep 1000) >/dev/null 2>&1 & echo done"
    with spawner.spawn(commands.bash(script, stdout="pipe"), name="leader") as child:
        assert child.stdout is not None
        assert child.stdout.read() == b"done\n"
        assert child.alive()
        child.stop(grace_s=0.0)


def test_logs_are_appended_to(spawner: Spawner, commands: Commands) -> None:
    log, errors = commands.folder / "log", commands.folder / "errors"
    log.write_text("before\n")
    script = "echo out; echo err >&2"
    with spawner.spawn(commands.bash(script, stderr=errors), name="leader") as child:
        child.wait(10)
    with spawner.spawn(commands.bash(script), name="leader") as child:
        child.wait(10)
    assert (log.read_text(), errors.read_text()) == ("before\nout\nout\nerr\n", "err\n")


def test_the_environment_is_exactly_the_given_one(spawner: Spawner, commands: Commands) -> None:
    command = commands.argv("env", "-0", stdout="pipe", env={"ODD": "a b\n'\"\\ \udcff"})
    with spawner.spawn(command, name="env") as child:
        assert child.stdout is not None
        seen = dict(row.split(b"=", 1) for row in child.stdout.read().split(b"\0")[:-1])
    assert seen == {os.fsencode(key): os.fsencode(value) for key, value in command.env.items()}


def test_an_environment_larger_than_any_pipe_arrives(spawner: Spawner, commands: Commands) -> None:
    env = {f"LARGE_{n}": "x" * 100_000 for n in range(8)}
    with spawner.spawn(commands.bash("exit ${#LARGE_7}", env=env), name="large") as child:
        assert child.wait(10) == 100_000 % 256


@pytest.mark.skipif(os.getuid() != 0, reason="only root can read the environment of a supervisor")
def test_variables_of_the_command_do_not_act_on_what_starts_it(spawner: Spawner, commands: Commands) -> None:
    env = {"LD_PRELOAD": "/nowhere/evil.so", "PYTHONPATH": str(commands.folder), "PYTHONSTARTUP": "/x"}
    with spawner.spawn(commands.argv("sleep", "1000", env=env), name="preload") as child:
        parent = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert b"LD_PRELOAD" in Path(f"/proc/{child.pid}/environ").read_bytes()
        assert b"LD_PRELOAD" not in Path(f"/proc/{parent}/environ").read_bytes()


def test_no_descriptor_of_the_harness_leaks(spawner: Spawner, commands: Commands) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        script = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int)[:-1])"
        with spawner.spawn(commands.argv(sys.executable, "-c", script, stdout="pipe"), name="fds") as child:
            assert child.stdout is not None
            assert child.stdout.read() == b"['0', '1', '2']\n"
    finally:
        os.close(reading)
        os.close(writing)


def test_signals_have_their_default_action(spawner: Spawner, commands: Commands) -> None:
    with spawner.spawn(commands.bash("grep SigIgn /proc/self/status", stdout="pipe"), name="sig") as child:
        assert child.stdout is not None
        ignored = int(child.stdout.read().split()[1], 16)
    reserved = 0b11 << 31  # signals 32 and 33 belong to the C library: nobody else can reset them
    assert ignored & ~reserved == 0


def test_limits_hold(spawner: Spawner, commands: Commands) -> None:
    limits = Limits(open_files=17, file_bytes=4096)
    script = "ulimit -n; head -c 9000 /dev/zero > large; echo $?"
    with spawner.spawn(commands.bash(script, stdout="pipe", limits=limits), name="limits") as child:
        assert child.stdout is not None
        first, *_, last = child.stdout.read().split()
    assert (first, last) == (b"17", str(128 + signal.SIGXFSZ).encode())
    assert (commands.folder / "large").stat().st_size == 4096


def test_the_pid_is_the_one_that_the_host_knows(spawner: Spawner, commands: Commands) -> None:
    with spawner.spawn(commands.argv("sleep", "1000"), name="sleep") as child:
        assert Path(f"/proc/{child.pid}/cmdline").read_bytes() == b"sleep\x001000\x00"


@pytest.mark.parametrize(
    ("argv", "folder", "text"),
    [
        (("no-such-program",), None, "first: cannot run no-such-program: No such file or directory"),
        (("/etc/passwd",), None, "first: cannot run /etc/passwd: Permission denied"),
        (("true",), "/nowhere", "first: cannot enter /nowhere: No such file or directory"),
    ],
)
def test_a_command_that_cannot_start_is_named(
    spawner: Spawner, commands: Commands, argv: tuple[str, ...], folder: str | None, text: str
) -> None:
    settings = {"cwd": Path(folder)} if folder else {}
    command = commands.argv(*argv)
    with pytest.raises(InfrastructureError) as caught:
        spawner.spawn(type(command)(**{**vars(command), **settings}), name="first")
    assert str(caught.value) == text


def test_sigterm_reaches_daemons_and_leaves_them_time(spawner: Spawner, commands: Commands) -> None:
    script = (
        "setsid bash -c 'trap \"sleep 0.3; echo saved > saved; exit\" TERM; echo up > up; sleep 9 & wait' &"
    )
    child = spawner.spawn(commands.bash(f"{script} sleep 1000"), name="saver")
    commands.wait_for("up")
    child.stop()
    assert commands.wait_for("saved", 0.1) == "saved\n"


def test_what_a_leader_leaves_behind_gets_sigterm_as_well(
    spawner: Spawner, commands: Commands, mark: Mark
) -> None:
    script = "setsid bash -c 'trap \"echo saved > saved; exit\" TERM; echo up > up; sleep 9 & wait' &"
    with spawner.spawn(commands.bash(f"{script} while ! [ -s up ]; do sleep 0.01; done"), name="saver"):
        commands.wait_for("saved")
        assert mark.gone_within(3)


def test_stop_returns_as_soon_as_nothing_is_left(spawner: Spawner, commands: Commands) -> None:
    child = spawner.spawn(commands.bash("sleep 1000 & sleep 1000"), name="sleep")
    began = time.monotonic()
    child.stop(grace_s=10.0)
    assert time.monotonic() - began < 2.0


def test_stop_may_be_called_often_and_from_many_threads(spawner: Spawner, commands: Commands) -> None:
    child = spawner.spawn(commands.hostile("ignores_term"), name="sleep")
    commands.wait_for("ready")
    threads = [threading.Thread(target=child.stop, args=(0.2,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    child.stop()
    assert child.poll() == -signal.SIGKILL


def test_a_child_outlives_the_thread_that_asked_for_it(spawner: Spawner, commands: Commands) -> None:
    children = []
    thread = threading.Thread(
        target=lambda: children.append(spawner.spawn(commands.argv("sleep", "1000"), name="sleep"))
    )
    thread.start()
    thread.join()
    with children[0] as child:
        assert child.wait(0.3) is None


def test_output_that_nobody_reads_does_not_hinder_a_stop(spawner: Spawner, commands: Commands) -> None:
    with spawner.spawn(commands.argv("yes", stdout="pipe"), name="yes") as child:
        time.sleep(0.1)
        child.stop()
        assert child.poll() == -signal.SIGTERM


def test_closing_the_spawner_stops_all_children_side_by_side(
    spawner: Spawner, commands: Commands, mark: Mark
) -> None:
    children = [spawner.spawn(commands.hostile("ignores_term"), name=str(n)) for n in range(4)]
    commands.wait_for("ready")
    began = time.monotonic()
    spawner.close(grace_s=0.5)
    assert time.monotonic() - began < 3.0
    assert [child.alive() for child in children] == [False] * 4
    assert mark.survivors() == []


def test_a_closed_spawner_refuses(spawner: Spawner, commands: Commands) -> None:
    spawner.close()
    with pytest.raises(InfrastructureError, match="closed"):
        spawner.spawn(commands.argv("true"), name="late")


def test_many_children_leave_no_descriptor_thread_or_zombie(spawner: Spawner, commands: Commands) -> None:
    def spawn_once() -> None:
        with spawner.spawn(commands.argv("true", stdin="pipe", stdout="pipe"), name="true") as child:
            child.wait(10)

    def left() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    spawn_once()
    before = left()
    for _ in range(10):
        spawn_once()
    with pytest.raises(InfrastructureError):
        spawner.spawn(commands.argv("no-such-program", stdin="pipe", stdout="pipe"), name="bad")
    time.sleep(0.1)
    assert left() == before
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def test_spawning_from_many_threads_gives_each_its_own(spawner: Spawner, commands: Commands) -> None:
    codes: dict[int, int | None] = {}

    def spawn(number: int) -> None:
        with spawner.spawn(commands.bash(f"exit {number}"), name=str(number)) as child:
            codes[number] = child.wait(20)

    threads = [threading.Thread(target=spawn, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert codes == {number: number for number in range(12)}
