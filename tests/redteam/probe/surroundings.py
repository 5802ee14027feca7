"""A harness with everything around it that an agent may want, and the probe inside: prints what came of it.

`surroundings.py LEVEL NETWORK FOLDER [DEFENCE]`, as root or as an ordinary user. FOLDER becomes the
operator's part of the machine: home, launch folder, lab home, sockets. DEFENCE is taken out of the view.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from posttrain.infra.processes import Command, Spawner
from posttrain.infra.sandbox import PACKAGE, Bind, Relay, View, choose_uid, hand_over

HERE = Path(__file__).resolve().parent
SECRET = "the-secret-of-the-lab"
LIBC = ctypes.CDLL(None, use_errno=True)
ADD_KEY, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]


def written(path: Path, text: str = SECRET) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def listener(address: str | tuple[str, int]) -> socket.socket:
    """A server that greets everyone, on a unix or a TCP address."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    server = socket.socket(family)
    server.bind(address)
    server.listen()
    if isinstance(address, str) and not address.startswith("\0"):
        os.chmod(address, 0o666)  # noqa: PTH101

    def serve() -> None:
        while True:
            client, _ = server.accept()
            with client, suppress(OSError):
                client.sendall(b"hello")

    threading.Thread(target=serve, daemon=True).start()
    return server


def plant_key(name: str) -> None:
    """In the session keyring, which children inherit, and in that of the user."""
    LIBC.syscall(KEYCTL, 1, None)
    for keyring in (-3, -4):
        LIBC.syscall(ADD_KEY, b"user", name.encode(), SECRET.encode(), len(SECRET), keyring)


@contextmanager
def shared_memory(key: int) -> Iterator[None]:
    number = LIBC.shmget(key, 4096, 0o1600)
    yield
    LIBC.shmctl(number, 0, None)


def plan(folder: Path, level: str) -> dict[str, object]:
    """Everything that can lie as a file, and the names of the rest."""
    lab, launch, home = folder / "launch" / "lab", folder / "launch", folder / "home"
    run = lab / "runs" / "boolean" / "1_probe"
    workspace = run / "workspace"
    (workspace / "output").mkdir(parents=True)
    for name in ("data", "models"):
        (workspace / name).mkdir()
    model = written(lab / "models" / "base" / "model.safetensors")
    data = written(lab / "datasets" / "boolean" / "visible" / "train.jsonl")
    if level == "none":
        (workspace / "data").rmdir()
        (workspace / "models").rmdir()
        (workspace / "data").symlink_to(Path(data).parent)
        (workspace / "models").symlink_to(Path(model).parent)
    return {
        "level": level,
        "secret": SECRET,
        "workspace": str(workspace),
        "model": str(workspace / "models" / "model.safetensors"),
        "data": str(workspace / "data" / "train.jsonl"),
        "lab_file": written(lab / "results.csv"),
        "ledger": written(run / "ledger.jsonl"),
        "other_run": written(lab / "runs" / "boolean" / "2_other" / "workspace" / "code" / "a.py"),
        "private_split": written(lab / "datasets" / "boolean" / "private" / "test.jsonl"),
        "env_file": written(launch / ".env", f"KEY={SECRET}"),
        "home_file": written(home / ".netrc"),
        "tmp_file": written(folder / "tmp" / "notes"),
        "prefix": sys.prefix,
        "package": str(PACKAGE),
        "harness_pid": os.getpid(),
        "harness_mark": "surroundings.py",
        "environment_mark": f"OPERATOR_TOKEN={SECRET}",
        "abstract": f"posttrain-{secrets.token_hex(4)}",
        "shm_key": secrets.randbelow(1 << 30) + 1,
        "key": f"posttrain-{secrets.token_hex(4)}",
        "tmux_socket": str(folder / "tmp" / "tmux"),
        "docker_socket": str(folder / "tmp" / "docker.sock"),
        "list": [str(path) for path in (folder, home, launch, lab, run, workspace)],
    }


def view(level: str, network: str, folder: Path, targets: dict[str, object], grader: Path) -> View:
    if level == "none":
        return View.host()
    lab, workspace = folder / "launch" / "lab", Path(str(targets["workspace"]))
    uid = choose_uid(str(folder)) if os.getuid() == 0 else None
    if uid is not None:
        hand_over(workspace, uid)
    return View.allow_list(
        home=folder / "home",
        uid=uid,
        network="grader" if network == "grader" else "host",
        relay=Relay(port=5000, socket=grader) if network == "grader" else None,
        writable=[workspace],
        readable=[HERE],
        binds=[
            Bind(lab / "datasets" / "boolean" / "visible", workspace / "data"),
            Bind(lab / "models" / "base", workspace / "models"),
        ],
        hidden=[folder / "launch", lab],
    )


def without(view: View, defence: str) -> View:
    """The view with one of its walls torn down."""
    options = list(view.bwrap_options)
    match defence:
        case "network":
            options.remove("--unshare-net")
            return replace(view, bwrap_options=tuple(options), relay=None)
        case "ipc":
            options.remove("--unshare-ipc")
        case "read-only":
            options = ["--bind" if option == "--ro-bind" else option for option in options]
        case "cover":
            place = options.index(str(PACKAGE / "benchmarks"))
            del options[place - 3 : place + 1]
        case "identity":
            options = options[: options.index("--cap-drop")]
            return replace(view, bwrap_options=tuple(options), drop=())
        case "seal":
            return replace(view, isolation="none")
    return replace(view, bwrap_options=tuple(options))


def main(level: str, network: str, name: str, defence: str = "") -> None:
    folder = Path(name).resolve()
    targets = plan(folder, level)
    with ExitStack() as opened:
        for address in (str(targets["docker_socket"]), f"\0{targets['abstract']}"):
            opened.enter_context(listener(address))
        loopback = opened.enter_context(listener(("127.0.0.1", 0)))
        targets["loopback_port"] = loopback.getsockname()[1]
        grader = folder / "grader.sock"
        opened.enter_context(listener(str(grader)))
        plant_key(str(targets["key"]))
        opened.enter_context(shared_memory(int(str(targets["shm_key"]))))
        tmux = ["tmux", "-f", os.devnull, "-S", str(targets["tmux_socket"])]
        subprocess.run([*tmux, "new-session", "-d", "sleep", "1000"], check=True)
        opened.callback(subprocess.run, [*tmux, "kill-server"], check=False)
        with Spawner() as spawner:
            command = Command(
                argv=[sys.executable, str(HERE / "probe.py"), json.dumps(targets)],
                cwd=Path(str(targets["workspace"])),
                env={"PATH": os.environ["PATH"], "HOME": str(folder / "home")},
                view=without(view(level, network, folder, targets, grader), defence),
            )
            with spawner.spawn(command, name="probe") as child:
                assert child.stdout is not None
                print(child.stdout.read().decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
