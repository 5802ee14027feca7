"""Starting child processes so that nothing of them outlives its end, its `stop`, or the harness.

A child is a tree: `bwrap` → `supervisor.py` (pid 1 of a pid namespace) → the command and whatever that
starts. Where no namespace can be had the supervisor is a subreaper outside one, and `kill_mode` says
`best-effort`. docs/design/processes.md tells what each mode guarantees and why.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, TypeVar

from posttrain.core.errors import InfrastructureError
from posttrain.infra import supervisor
from posttrain.infra.sandbox import View

KillMode = Literal["namespace", "best-effort"]
_T = TypeVar("_T")

LEFTOVER_GRACE_S = 10.0
"""What a command leaves behind when it ends has this long to act on SIGTERM."""
_HANDSHAKE_S = 60.0
_KILL_PATIENCE_S = 30.0
_PROBE_S = 20.0
_NAMESPACE = ("--unshare-pid", "--die-with-parent", "--new-session", "--as-pid-1")
_CREDENTIALS = struct.Struct("3i")
_CLEAN_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_SUPERVISOR = str(Path(supervisor.__file__).resolve())


@dataclass(frozen=True)
class Limits:
    """Resource limits of the command and, each for itself, of its descendants. None: as the harness."""

    address_space_bytes: int | None = None
    file_bytes: int | None = None
    cpu_s: int | None = None
    open_files: int | None = None
    processes: int | None = None
    """Counted by the kernel over all processes of the uid, unless the view has one of its own."""
    core_bytes: int | None = 0

    def by_name(self) -> dict[str, int]:
        """The limits that are set, by the kernel's names."""
        values = {
            "RLIMIT_AS": self.address_space_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_CORE": self.core_bytes,
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Command:
    """What to start. No shell comes in between; `env` is the whole environment."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    stdin: Literal["pipe", "null"] = "null"
    stdout: Literal["pipe"] | Path = "pipe"
    """A path is appended to."""
    stderr: Path | Literal["stdout", "null"] = "stdout"
    limits: Limits | None = None
    view: View = field(default_factory=View.host)


class Child:
    """One started command and all processes that came from it.

    Leaving it as a context manager stops it and closes its pipes. All methods may be called from any
    thread, `stop` any number of times.
    """

    def __init__(
        self,
        name: str,
        *,
        launch: _Launch,
        stdin: BinaryIO | None,
        stdout: BinaryIO | None,
        on_gone: Callable[[Child], None],
    ) -> None:
        self.name = name
        self.pid = launch.leader_pid
        """The command's process id as the harness sees it."""
        self.stdin = stdin
        self.stdout = stdout
        self._launch = launch
        self._code: int | None = None
        self._exited = threading.Event()
        self._gone = threading.Event()
        self._on_gone = on_gone
        threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True).start()

    def poll(self) -> int | None:
        """The command's exit code, negative for the signal that ended it; None while it runs."""
        return self._code if self._exited.is_set() else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """As `poll`, after waiting for the command to end. What it left behind may live on for a while."""
        self._exited.wait(timeout_s)
        return self.poll()

    def alive(self) -> bool:
        """Whether any process of the tree is left."""
        return not self._gone.is_set()

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM to every process of the tree, SIGKILL to what is left after `grace_s`; returns when empty.

        Raises InfrastructureError if something survives even that (stuck inside the kernel).
        """
        if grace_s > 0:
            self._launch.order(stop=True)
        if not self._gone.wait(max(0.0, grace_s)):
            self._launch.kill()
        if not self._gone.wait(_KILL_PATIENCE_S):
            raise InfrastructureError(f"{self.name}: processes survive SIGKILL for {_KILL_PATIENCE_S:.0f} s")

    def _watch(self) -> None:
        for event, _ in self._launch.reports:
            if event["event"] == "exited":
                self._code = int(event["code"])
                self._exited.set()
        self._launch.wait_until_empty()
        if self._code is None:
            self._code = -signal.SIGKILL
        self._exited.set()
        self._gone.set()
        self._on_gone(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            for pipe in (self.stdin, self.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # what was buffered for a reader that is gone
                        pipe.close()


class _Launch:
    """The harness's hold on one supervisor: its socket, its process and, in a namespace, pid 1's handle."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, mode: KillMode) -> None:
        self._process = process
        self._channel = channel
        self._mode = mode
        self._lock = threading.Lock()
        self._init: int | None = None
        self.leader_pid = 0
        self.reports = self._read()
        """(event, pid of its sender) until the supervisor is gone."""

    def begin(self, specification: Mapping[str, Any]) -> str | None:
        """Hand over the specification and wait for the start: None, or why there was none."""
        assert self._process.stderr is not None
        with self._process.stderr as diagnosis:
            try:
                failure = self._shake_hands(specification)
            except TimeoutError:
                failure = f"no answer in {_HANDSHAKE_S:.0f} s"
            except OSError:
                failure = ""
            if failure is not None:
                self.kill()
                self.wait_until_empty()
                failure = failure or diagnosis.read().decode("utf-8", "replace").strip() or "it died at once"
        return failure

    def _shake_hands(self, specification: Mapping[str, Any]) -> str | None:
        self._channel.settimeout(_HANDSHAKE_S)
        for event, sender in self.reports:
            match event["event"]:
                case "ready":
                    self._init = os.pidfd_open(sender) if self._mode == "namespace" else None
                    self._send(specification)
                case "leader":
                    self.leader_pid = sender
                case "started":
                    self._channel.settimeout(None)
                    return None
                case "failed":
                    return str(event["error"])
        return ""

    def _read(self) -> Iterator[tuple[dict[str, Any], int]]:
        """The kernel never mixes bytes of two senders in one read, and translates pids between namespaces."""
        pending = b""
        while True:
            try:
                data, extra, _, _ = self._channel.recvmsg(1 << 16, socket.CMSG_SPACE(_CREDENTIALS.size))
            except ConnectionError:
                return
            if not data:
                return
            sender = _CREDENTIALS.unpack(extra[0][2])[0] if extra else 0
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                yield json.loads(line), sender

    def order(self, **order: bool) -> None:
        """Tell the supervisor; one that is gone needs no orders."""
        with suppress(OSError):
            self._send(order)

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def kill(self) -> None:
        """End everything without asking it."""
        if self._mode == "best-effort":
            self._process.send_signal(signal.SIGCONT)
            self.order(kill=True)
            return
        self._process.kill()
        with self._lock:
            if self._init is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)

    def wait_until_empty(self) -> None:
        """Return when the kernel has removed the last process; pid 1 of a namespace is always the last."""
        if self._init is not None:
            gone = select.poll()
            gone.register(self._init, select.POLLIN)
            gone.poll()
        self._process.wait()
        with self._lock:
            if self._init is not None:
                os.close(self._init)
                self._init = None
            self._channel.close()


class Spawner:
    """Starts children. Closing it stops those that live and refuses new ones.

    One thread does all the forking and lives as long as the spawner: the signal that the kernel sends
    to children of a dead parent fires when the *thread* that forked them ends.
    """

    def __init__(self, *, kill_mode: KillMode | None = None) -> None:
        """`kill_mode` is found out on first use unless given."""
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._closed = False
        self._mode = kill_mode
        self._forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")

    @property
    def kill_mode(self) -> KillMode:
        """namespace: the kernel ends every process of a tree. best-effort: a supervisor tries to."""
        with self._lock:
            if self._mode is None:
                self._mode = "best-effort" if why_no_namespace() else "namespace"
            return self._mode

    def spawn(self, command: Command, *, name: str) -> Child:
        """Start `command` and return once it runs.

        Raises InfrastructureError, with nothing left behind, if it cannot be started.
        """
        mode = self.kill_mode
        if mode == "best-effort" and command.view.isolation != "none":
            raise InfrastructureError(f"{name}: its view needs a namespace, and there is none to be had")
        with ExitStack() as undo, _Stdio() as stdio:
            writer, reader = stdio.open(command, undo)
            launch = self._in_forker(lambda: _fork(command.view, mode=mode, stdio=stdio))
            failure = launch.begin(_specification(command, stdio))
            if failure is not None:
                raise InfrastructureError(f"{name}: {failure}")
            child = Child(name, launch=launch, stdin=writer, stdout=reader, on_gone=self._forget)
            undo.pop_all()
        if not self._remember(child):
            child.__exit__(None, None, None)
            raise InfrastructureError(f"{name}: the spawner is closed")
        return child

    def _remember(self, child: Child) -> bool:
        """False if the spawner was closed meanwhile."""
        with self._lock:
            if not self._closed and child.alive():
                self._children.add(child)
            return not self._closed

    def _in_forker(self, fork: Callable[[], _T]) -> _T:
        try:
            return self._forker.submit(fork).result()
        except RuntimeError as error:
            raise InfrastructureError("the spawner is closed") from error

    def _forget(self, child: Child) -> None:
        with self._lock:
            self._children.discard(child)

    def close(self, grace_s: float = 10.0) -> None:
        """Stop all children, side by side, and the thread."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        stoppers = [threading.Thread(target=child.stop, args=(grace_s,)) for child in children]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join()
        self._forker.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Stdio:
    """The three descriptors that the command gets; closed here once it has them."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self._opened = ExitStack()

    def open(self, command: Command, undo: ExitStack) -> tuple[BinaryIO | None, BinaryIO | None]:
        """The harness's ends of the pipes, registered with `undo`."""
        writer = reader = None
        if command.stdin == "pipe":
            theirs, ours = os.pipe()
            self._add(theirs)
            writer = undo.enter_context(os.fdopen(ours, "wb"))
        else:
            self._add(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        if isinstance(command.stdout, Path):
            self._add(_open_log(command.stdout))
        else:
            ours, theirs = os.pipe()
            self._add(theirs)
            reader = undo.enter_context(os.fdopen(ours, "rb"))
        self._add_stderr(command.stderr)
        return writer, reader

    def _add_stderr(self, stderr: Path | Literal["stdout", "null"]) -> None:
        if isinstance(stderr, Path):
            self._add(_open_log(stderr))
        elif stderr == "null":
            self._add(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        else:
            self.descriptors.append(self.descriptors[1])

    def _add(self, descriptor: int) -> None:
        self.descriptors.append(descriptor)
        self._opened.callback(os.close, descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def _open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _specification(command: Command, stdio: _Stdio) -> dict[str, Any]:
    relay = command.view.relay
    return {
        "argv": list(command.argv),
        "cwd": str(command.cwd),
        "env": dict(command.env),
        "limits": (command.limits or Limits()).by_name(),
        "stdio": stdio.descriptors,
        "grace_s": LEFTOVER_GRACE_S,
        "sealed": command.view.sealed,
        "relay": relay and {"port": relay.port, "socket": str(relay.socket)},
    }


def _fork(view: View, *, mode: KillMode, stdio: _Stdio) -> _Launch:
    """Start the supervisor, inside a namespace or not. It runs with a clean environment of its own.

    What the command's environment holds (LD_PRELOAD, PYTHONPATH) must not act before its view closes.
    """
    ours, theirs = socket.socketpair()
    with theirs, ExitStack() as opened:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        argv = [_interpreter(), "-I", "-S", _SUPERVISOR, mode, str(theirs.fileno())]
        passed = {theirs.fileno(), *stdio.descriptors}
        if mode == "namespace":
            prefix, files = _namespace(view, opened)
            argv = [*prefix, *argv]
            passed |= files
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=tuple(passed),
                env=_CLEAN_ENV,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise InfrastructureError(f"cannot start {argv[0]}: {error.strerror}") from error
    return _Launch(process, ours, mode)


def _namespace(view: View, opened: ExitStack) -> tuple[list[str], set[int]]:
    """The command line before the supervisor's, and the descriptors that it reads."""

    def file_with(content: bytes) -> int:
        number = os.memfd_create("view")
        opened.callback(os.close, number)
        with os.fdopen(number, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(number, 0, os.SEEK_SET)
        return number

    files = {name: file_with(content) for name, content in view.files.items()}
    contents = [("--perms", "0444", "--ro-bind-data", str(number), name) for name, number in files.items()]
    words = (*view.bwrap_options, *chain.from_iterable(contents), *_NAMESPACE)
    # from a file: command lines are visible to every user of the host
    options = file_with("\0".join(words).encode("utf-8", "surrogateescape"))
    prefix = [_bwrap() or "bwrap", "--args", str(options), "--", *view.drop]
    return prefix, {options, *files.values()}


def why_no_namespace() -> str | None:
    """None if this process may make pid namespaces with bubblewrap, else the reason in one line."""
    bwrap = _bwrap()
    if bwrap is None:
        return "bubblewrap is not installed (package bubblewrap, program bwrap)"
    python = [_interpreter(), "-I", "-S", "-c", "pass"]
    try:
        result = subprocess.run(
            [bwrap, *View.host().bwrap_options, *_NAMESPACE, "--", *python],
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_CLEAN_ENV,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run: {error}"
    text = result.stderr.decode("utf-8", "replace").strip()
    return None if result.returncode == 0 else text or f"bubblewrap ended with {result.returncode}"


def _bwrap() -> str | None:
    return shutil.which("bwrap", path=_CLEAN_ENV["PATH"])


def _interpreter() -> str:
    """The real file of the Python in use; links to it may lie where a view does not reach."""
    return str(Path(sys.executable).resolve())
