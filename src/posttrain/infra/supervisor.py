"""The process between the harness and everything that it starts: parent, reaper and judge of one tree.

A program of its own (`python -I -S supervisor.py MODE FD`, standard library only). Pid 1 of a pid
namespace in mode `namespace`, where the kernel shields it from every signal of its own tree; a child
subreaper in mode `best-effort`. Over the socket FD it reads one specification and then orders, and
reports events, one JSON object a line each:

    harness → {"argv", "cwd", "env", "limits", "stdio", "grace_s", "sealed", "relay"}, then
              {"stop": true}, {"kill": true}
    supervisor → {"event": "ready"}, {"event": "started"} or {"event": "failed", "error"},
                 {"event": "exited", "code"} when the leader ended; end of file when nothing is left

The leader sends {"event": "leader"} itself before it becomes the command: the kernel attaches its pid
as the harness sees it. The socket's end of file means that the harness died: everything is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    from posttrain.infra.relay import Relay

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET = 1
_POLL_S = 0.02
_LINE_LIMIT = 1 << 16


class Channel:
    """The socket to the harness, line by line."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._pending = b""
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **event: Any) -> None:
        """Report; a harness that is gone is noticed by reading, not here."""
        line = json.dumps(event).encode() + b"\n"
        try:
            self._socket.sendall(line)
        except OSError:
            self.closed = True

    def receive(self) -> list[dict[str, Any]]:
        """The messages that one read completes; sets `closed` at the end of file."""
        try:
            data = self._socket.recv(_LINE_LIMIT)
        except ConnectionError:  # the harness died with a report unread
            data = b""
        self.closed = self.closed or not data
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Tree(Protocol):
    """All processes below the supervisor."""

    def terminate(self) -> None:
        """Send SIGTERM to each of them once, and wake the stopped so that they can act on it."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to each of them."""
        ...


class NamespaceTree:
    """Everything in the pid namespace whose pid 1 is this process."""

    def __init__(self) -> None:
        if os.getpid() != 1:  # in the host's namespace its signals would reach every process of the host
            raise SystemExit("not the first process of a pid namespace")

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signum)  # in one step, without the sender and pid 1


class DescendantTree:
    """Everything below a subreaper, found in /proc; a descendant whose parent died becomes a child here.

    All are stopped before any is signalled: one that forks meanwhile would leave a child unnoticed.
    """

    def terminate(self) -> None:
        frozen = self._freeze()
        for signum in (signal.SIGTERM, signal.SIGCONT):
            for pid, started in frozen:
                signal_once(pid, started, signum)

    def kill(self) -> None:
        for pid, started in self._freeze():
            signal_once(pid, started, signal.SIGKILL)

    def _freeze(self) -> set[tuple[int, str]]:
        frozen: set[tuple[int, str]] = set()
        while new := set(descendants(os.getpid())) - frozen:
            for pid, started in new:
                signal_once(pid, started, signal.SIGSTOP)
            frozen |= new
        return frozen


def descendants(root: int) -> list[tuple[int, str]]:
    """(pid, start time) of every process below `root`."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for pid, parent, started in running():
        parents.setdefault(parent, []).append((pid, started))
    found: list[tuple[int, str]] = []
    open_ends = [root]
    while open_ends:
        below = parents.pop(open_ends.pop(), [])
        found += below
        open_ends += [pid for pid, _ in below]
    return found


def running() -> Iterator[tuple[int, int, str]]:
    """(pid, parent, start time) of every visible process."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs a third of this program's start
        if name.isdigit() and (fields := stat_fields(int(name))):
            yield int(name), int(fields[1]), fields[19]


def stat_fields(pid: int) -> list[str]:
    """/proc/<pid>/stat after the command name, from the state on; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def signal_once(pid: int, started: str, signum: int) -> None:
    """Signal the process that had this pid at this start time, never one that got the number later."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if (fields := stat_fields(pid)) and fields[19] == started:
                signal.pidfd_send_signal(handle, signum)
        finally:
            os.close(handle)


def children_left() -> bool:
    """Whether this process has a child, dead or alive."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap_all() -> dict[int, int]:
    """Exit codes of the children that ended, negative for a signal."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if pid == 0:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)


class Supervisor:
    """Starts the leader, outlives it, and ends when its tree is empty."""

    def __init__(self, channel: Channel, tree: Tree) -> None:
        self._channel = channel
        self._tree = tree
        self._leader: int | None = None
        self._grace_s = 0.0
        self._stopping = False
        self._deadline = float("inf")

    def run(self, wake: int) -> None:
        """`wake` becomes readable when a child ends."""
        spec = self._specification()
        if spec is None or not self._start(spec):
            return
        try:
            self._attend(wake)
        finally:
            self._kill()

    def _attend(self, wake: int) -> None:
        """Reap and obey until nothing is left, or what is left must be killed now."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while children_left() and not self._channel.closed and time.monotonic() < self._deadline:
            ready = {descriptor for descriptor, _ in poll.poll(self._patience_ms())}
            if wake in ready:
                os.read(wake, 4096)
            if self._channel.fileno() in ready:
                self._obey()
            self._reap()

    def _specification(self) -> dict[str, Any] | None:
        self._channel.send(event="ready")
        while not self._channel.closed:
            for message in self._channel.receive():
                return message
        return None

    def _start(self, spec: dict[str, Any]) -> bool:
        self._grace_s = float(spec["grace_s"])
        if spec["sealed"]:
            seal()
        try:
            relay = listen(spec["relay"]) if spec["relay"] else None
            self._leader = start_leader(spec, self._channel)
        except StartError as error:
            self._channel.send(event="failed", error=str(error))
            return False
        if relay is not None:
            relay.start()  # only now: a process with threads must not fork
        self._channel.send(event="started")
        return True

    def _patience_ms(self) -> float:
        return min(3600.0, max(0.0, self._deadline - time.monotonic())) * 1000

    def _obey(self) -> None:
        for order in self._channel.receive():
            if order.get("kill"):
                self._deadline = 0.0
            elif order.get("stop"):
                self._terminate()

    def _reap(self) -> None:
        """Collect the dead. With the leader gone, what it left has `grace_s` to end as well."""
        codes = reap_all()
        if self._leader in codes:
            self._channel.send(event="exited", code=codes[self._leader])
            self._leader = None
            self._terminate()
            self._deadline = min(self._deadline, time.monotonic() + self._grace_s)

    def _terminate(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._tree.terminate()

    def _kill(self) -> None:
        """Kill until no child is left."""
        while children_left():
            self._tree.kill()
            self._reap()
            time.sleep(_POLL_S)


class StartError(Exception):
    """The leader could not become the command."""


def listen(relay: dict[str, Any]) -> Relay:
    """Take the port before the command can."""
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    program = importlib.import_module("relay")
    try:
        listening: Relay = program.Relay(port=relay["port"], target=relay["socket"])
    except OSError as error:
        raise StartError(f"cannot listen on 127.0.0.1:{relay['port']}: {error.strerror}") from error
    return listening


def start_leader(spec: dict[str, Any], channel: Channel) -> int:
    """Fork the command and return its pid once it has been executed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        become(spec, channel, writing)
    os.close(writing)
    for descriptor in set(spec["stdio"]):
        os.close(descriptor)
    with os.fdopen(reading, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        raise StartError(failure.decode("utf-8", "replace"))
    return pid


def become(spec: dict[str, Any], channel: Channel, errors: int) -> NoReturn:
    """Turn this forked process into the command; a failure is written to `errors`, which exec closes."""
    step = "start"
    try:
        channel.send(event="leader")
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        for target, descriptor in enumerate(spec["stdio"]):
            os.dup2(descriptor, target)
        reset_signals()
        os.umask(0o022)
        for name, value in spec["limits"].items():
            step = f"set {name} to {value}"
            lower_limit(getattr(resource, name), value)
        step = f"enter {spec['cwd']}"
        os.chdir(spec["cwd"])
        step = f"run {spec['argv'][0]}"
        os.closerange(3, errors)
        os.closerange(errors + 1, 1 << 20)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - without a shell is the point
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        os.write(errors, f"cannot {step}: {reason}".encode("utf-8", "surrogateescape"))
    finally:
        os._exit(127)


def lower_limit(which: int, value: int) -> None:
    """Set soft and hard limit to `value`, or to the present hard limit where that is lower."""
    _, hard = resource.getrlimit(which)
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (limit, limit))


def reset_signals() -> None:
    """Default actions, nothing blocked: what this program ignores must not be ignored by the command."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def seal() -> None:
    """Leave behind the two things that namespaces share: the keyring, and abstract sockets (network `host`).

    A kernel that lacks either has nothing that could be left; docs/design/processes.md names what remains.
    """
    libc = ctypes.CDLL(None)
    if number := _KEYCTL.get(os.uname().machine):
        libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None, 0, 0, 0)
    rules = (ctypes.c_uint64 * 3)(0, 0, _LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET)
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, rules, ctypes.sizeof(rules), 0)
    if ruleset >= 0:
        libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def shielded(mode: str) -> Tree:
    """Make this process hard to disturb, and the one that inherits all orphans."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    prctl(_PR_SET_DUMPABLE, 0)  # not to be traced or read by processes of the same uid
    if mode == "namespace":
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # cleared by a change of uid, though set by bwrap
        return NamespaceTree()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return DescendantTree()


def child_alarm() -> int:
    """A descriptor that becomes readable whenever a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def main(mode: str, descriptor: str) -> None:
    tree = shielded(mode)
    Supervisor(Channel(int(descriptor)), tree).run(child_alarm())


if __name__ == "__main__":
    main(*sys.argv[1:])
