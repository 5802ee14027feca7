"""What a child of level bwrap sees and can do, and that what it needs works."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.infra.levels import Levels
from posttrain.infra.processes import Spawner
from posttrain.infra.sandbox import PACKAGE, Bind, Relay, View, choose_uid, hand_over

from .conftest import Commands, Mark

HOME = Path("/home/agent")
AS_ROOT = os.getuid() == 0


@pytest.fixture(scope="module")
def spawner(levels: Levels) -> Iterator[Spawner]:
    if levels.why_no_bwrap:
        pytest.skip(levels.why_no_bwrap)
    with Spawner() as spawner:
        yield spawner


@pytest.fixture
def uid(commands: Commands) -> int | None:
    return choose_uid(str(commands.folder)) if AS_ROOT else None


def seen_by(uid: int | None, folder: Path, **settings: object) -> View:
    """A view in which `folder` is writable, without network unless said otherwise."""
    if uid is not None:
        hand_over(folder, uid)
    settings = {"home": HOME, "network": "none", "writable": [folder], **settings}
    return View.allow_list(uid=uid, **settings)  # type: ignore[arg-type]


def output(spawner: Spawner, commands: Commands, script: str, view: View) -> str:
    """What `script` prints in `view`."""
    with spawner.spawn(commands.bash(script, stdout="pipe", view=view), name="seen") as child:
        assert child.stdout is not None
        return child.stdout.read().decode()


def test_the_workspace_is_writable_at_its_own_path(spawner: Spawner, commands: Commands, uid: int) -> None:
    text = output(spawner, commands, "pwd; echo written > file", seen_by(uid, commands.folder))
    assert text == f"{commands.folder}\n"
    assert (commands.folder / "file").read_text() == "written\n"


def test_binds_are_read_only_inside_of_the_workspace(spawner: Spawner, commands: Commands, uid: int) -> None:
    data = commands.folder / "data"
    data.mkdir()
    view = seen_by(uid, commands.folder, binds=[Bind(PACKAGE / "core", data)])
    text = output(
        spawner, commands, "ls data/paths.py; touch data/x 2>&1; rm -rf data 2>/dev/null; ls data", view
    )
    assert text.splitlines()[:2] == ["data/paths.py", "touch: cannot touch 'data/x': Read-only file system"]
    assert "paths.py" in text.splitlines()[2:]


def test_python_of_the_harness_runs_with_posttrain_but_without_its_tasks(
    spawner: Spawner, commands: Commands, uid: int
) -> None:
    script = (
        "import multiprocessing, os, posttrain.core.paths; multiprocessing.Lock(); print(os.listdir(folder))"
    )
    line = f"{sys.executable} -c 'folder = \"{PACKAGE}/benchmarks\"; {script}'"
    assert output(spawner, commands, line, seen_by(uid, commands.folder)) == "[]\n"


@pytest.mark.slow
def test_torch_runs_inside(spawner: Spawner, commands: Commands, uid: int) -> None:
    pytest.importorskip("torch")
    line = f"{sys.executable} -c 'import torch; print((torch.ones(9, 9) @ torch.ones(9, 9)).sum().item())'"
    env = {"OMP_WAIT_POLICY": "PASSIVE", "HOME": str(HOME)}
    command = commands.bash(line, stdout="pipe", view=seen_by(uid, commands.folder), env=env)
    with spawner.spawn(command, name="torch") as child:
        assert child.stdout is not None
        assert child.stdout.read() == b"729.0\n"


def test_home_and_temporary_folders_are_empty_and_writable(
    spawner: Spawner, commands: Commands, uid: int
) -> None:
    script = (
        f"for d in {HOME} /tmp /var/tmp /dev/shm; do touch $d/new || echo no $d; done; ls {HOME} /dev/shm"
    )
    text = output(spawner, commands, script, seen_by(uid, commands.folder))
    assert text == f"/dev/shm:\nnew\n\n{HOME}:\nnew\n"


def test_the_launch_folder_is_hidden_but_for_what_is_shown_below_it(
    spawner: Spawner, commands: Commands, uid: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shown = tmp_path_factory.mktemp("shown")
    shown.chmod(0o755)
    launch = shown / "launch"
    for name in ("launch/agents/mine", "launch/lab", "beside"):
        (shown / name).mkdir(parents=True)
    view = seen_by(
        uid, commands.folder, readable=[shown, launch / "agents/mine"], hidden=[launch, launch / "lab"]
    )
    assert output(spawner, commands, f"cd {shown}; find * | sort", view) == (
        "beside\nlaunch\nlaunch/agents\nlaunch/agents/mine\n"
    )


def test_a_launch_folder_that_holds_the_system_hides_nothing(
    spawner: Spawner, commands: Commands, uid: int
) -> None:
    view = seen_by(uid, commands.folder, hidden=[Path("/"), Path("/usr"), Path("/usr/bin"), Path(sys.prefix)])
    assert output(spawner, commands, f"{sys.executable} -c 'print(1)'", view) == "1\n"


@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
def test_what_is_shown_inside_of_something_shown_may_be_a_link(
    spawner: Spawner, commands: Commands, uid: int | None, tmp_path: Path, absolute: bool
) -> None:
    tool, far, farther = (tmp_path / name / "bin" for name in ("tool", "far", "farther"))
    for folder in (tool, far, farther):
        folder.mkdir(parents=True)
    (farther / "program").write_text("#!/bin/sh\necho it runs\n")
    (farther / "program").chmod(0o755)
    (far / "program").symlink_to(farther / "program" if absolute else "../../farther/bin/program")
    (tool / "program").symlink_to(far / "program" if absolute else "../../far/bin/program")
    (tool / "folder").symlink_to(farther if absolute else "../../farther/bin")
    shown = [tool.parent, tool / "program", tool / "folder" / "program"]
    view = seen_by(uid, commands.folder, readable=shown, hidden=[tmp_path / "far"])
    text = output(spawner, commands, f"{tool}/program; {tool}/folder/program; ls {tmp_path}/far/bin", view)
    assert text == "it runs\nit runs\nprogram\n"


def test_what_is_hidden_may_be_named_by_a_link_inside_of_something_shown(
    spawner: Spawner, commands: Commands, uid: int | None, tmp_path: Path
) -> None:
    shown, secret = tmp_path / "shown", tmp_path / "shown" / "secret"
    (secret / "bin").mkdir(parents=True)
    (secret / "answers").write_text("42\n")
    (tmp_path / "program").write_text("it is seen\n")
    (secret / "bin" / "program").symlink_to(tmp_path / "program")
    (shown / "folder").symlink_to(secret)
    (shown / "file").symlink_to(secret / "answers")
    view = seen_by(
        uid,
        commands.folder,
        readable=[shown, secret / "bin" / "program", shown / "folder" / "bin" / "program"],
        hidden=[shown / "folder", shown / "file"],
    )
    script = (
        f"cd {shown}; cat file folder/answers secret/answers 2>/dev/null; cat folder/bin/program; ls secret"
    )
    assert output(spawner, commands, script, view) == "it is seen\nbin\n"


def test_a_hidden_file_reads_as_empty(spawner: Spawner, commands: Commands, uid: int) -> None:
    secret = commands.folder / ".env"
    secret.write_text("KEY=1")
    view = seen_by(uid, commands.folder, hidden=[secret])
    assert output(spawner, commands, "wc -c < .env", view) == "0\n"


def test_the_child_has_a_name_and_no_privileges(spawner: Spawner, commands: Commands, uid: int) -> None:
    script = "whoami; grep -h -E '^(Cap(Prm|Eff|Bnd)|NoNewPrivs|Groups)' /proc/self/status"
    name, *rows = output(spawner, commands, script, seen_by(uid, commands.folder)).splitlines()
    fields = dict(row.split(":\t") for row in rows)
    assert name == "agent"
    assert fields["NoNewPrivs"] == "1"
    assert {fields[key] for key in ("CapPrm", "CapEff", "CapBnd")} == {"0" * 16}
    if AS_ROOT:
        assert fields["Groups"].strip() == ""


def test_names_are_resolved_with_the_network_of_the_host(
    spawner: Spawner, commands: Commands, uid: int
) -> None:
    view = seen_by(uid, commands.folder, network="host")
    assert output(spawner, commands, "cat /etc/resolv.conf", view) == Path("/etc/resolv.conf").read_text()


def test_stop_leaves_nothing_even_if_bwrap_was_killed_before(
    spawner: Spawner, commands: Commands, mark: Mark, uid: int
) -> None:
    view = seen_by(uid, commands.folder)
    with spawner.spawn(commands.bash("sleep 1000 & sleep 1000", view=view), name="sleep") as child:
        os.kill(parent_of(parent_of(child.pid)), signal.SIGKILL)
        child.stop()
    assert mark.survivors() == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_best_effort_refuses_a_view(commands: Commands, uid: int) -> None:
    with Spawner(kill_mode="best-effort") as spawner:
        command = commands.argv("true", view=seen_by(uid, commands.folder))
        with pytest.raises(InfrastructureError, match="namespace"):
            spawner.spawn(command, name="true")


def test_a_view_that_contradicts_itself_is_refused() -> None:
    uid = 1234 if AS_ROOT else None
    with pytest.raises(UsageError, match="uid"):
        View.allow_list(home=HOME, uid=None if AS_ROOT else 1234, network="none")
    with pytest.raises(UsageError, match="relay"):
        View.allow_list(home=HOME, uid=uid, network="grader")
    with pytest.raises(UsageError, match="relay"):
        View.allow_list(home=HOME, uid=uid, network="host", relay=Relay(1, Path("/x")))


def test_a_run_gets_the_same_free_uid_again() -> None:
    first, again, other = choose_uid("run"), choose_uid("run"), choose_uid("other")
    assert first == again != other
    assert first not in {folder.stat().st_uid for folder in Path("/proc").iterdir() if folder.name.isdigit()}


@pytest.mark.skipif(not AS_ROOT, reason="only root gives files away")
def test_handing_over_follows_no_links(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    for folder in (outside / "deep", workspace / "a" / "b"):
        folder.mkdir(parents=True)
    (workspace / "a" / "link").symlink_to(outside)
    (workspace / "a" / "b" / "file").touch()
    hand_over(workspace, 4321)
    owners = {
        path.name: path.lstat().st_uid for path in (workspace, *workspace.rglob("*"), *tmp_path.rglob("o*"))
    }
    assert owners == {"workspace": 4321, "a": 4321, "b": 4321, "file": 4321, "link": 4321, "outside": 0}
    assert (outside / "deep").stat().st_uid == 0


class Server:
    """A server on a unix socket that answers every connection by `answer(connection)`."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o666)
        self._listener.listen(256)
        self.peers: list[int] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        """Everything that came, again, after the client's last byte."""
        with client:
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self.peers.append(struct.unpack("3i", credentials)[1])
            received = bytearray()
            while block := client.recv(1 << 16):
                received += block
            client.sendall(received)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def grader(commands: Commands) -> Iterator[tuple[Server, View]]:
    folder = commands.folder / "workspace"
    folder.mkdir()
    path = commands.folder / "grader.sock"
    uid = choose_uid(str(folder)) if AS_ROOT else None
    with closing(Server(path)) as server:
        view = seen_by(uid, folder, network="grader", relay=Relay(5000, path))
        object.__setattr__(commands, "folder", folder)
        yield server, view


CLIENT = """
import socket, sys, threading
def talk(number):
    body = bytes([number]) * {size}
    with socket.create_connection(("127.0.0.1", 5000)) as connection:
        threading.Thread(target=lambda: (connection.sendall(body), connection.shutdown(1))).start()
        answer = bytearray()
        while block := connection.recv(1 << 16):
            answer += block
    results.append(answer == body)
results = []
threads = [threading.Thread(target=talk, args=(number,)) for number in range({clients})]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(results.count(True), len(results))
"""


@pytest.mark.parametrize(("clients", "size"), [(1, 1), (1, 5_000_000), (200, 1000)])
def test_the_relay_carries_every_byte(
    spawner: Spawner, commands: Commands, grader: tuple[Server, View], clients: int, size: int
) -> None:
    server, view = grader
    script = CLIENT.format(size=size, clients=clients)
    command = commands.argv(sys.executable, "-I", "-c", script, stdout="pipe", view=view)
    with spawner.spawn(command, name="client") as child:
        assert child.stdout is not None
        assert child.stdout.read() == f"{clients} {clients}\n".encode()
    expected = choose_uid(str(commands.folder)) if AS_ROOT else os.getuid()
    assert set(server.peers) == {expected}


def test_the_port_is_taken_before_the_command_runs(
    spawner: Spawner, commands: Commands, grader: tuple[Server, View]
) -> None:
    script = "import socket; socket.create_server(('127.0.0.1', 5000))"
    command = commands.argv(sys.executable, "-I", "-c", script, stdout="pipe", view=grader[1])
    with spawner.spawn(command, name="squatter") as child:
        assert child.stdout is not None
        assert b"Address already in use" in child.stdout.read()


def test_without_a_server_the_relay_hangs_up(
    spawner: Spawner, commands: Commands, grader: tuple[Server, View]
) -> None:
    server, view = grader
    server.close()
    script = "import socket; c = socket.create_connection(('127.0.0.1', 5000)); print(c.recv(1))"
    command = commands.argv(sys.executable, "-I", "-c", script, stdout="pipe", view=view)
    with spawner.spawn(command, name="client") as child:
        assert child.stdout is not None
        assert child.stdout.read() == b"b''\n"
