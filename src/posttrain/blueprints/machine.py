"""Where an experiment runs: this machine, or one behind ssh (ssh.py). Executors know only this contract."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import posttrain
from posttrain.blueprints.attempt import AttemptPaths, boot_id
from posttrain.blueprints.readiness import Readiness
from posttrain.blueprints.status import Probe, Status
from posttrain.core.errors import InfrastructureError
from posttrain.core.frozen import Frozen
from posttrain.infra.files import write_atomic
from posttrain.infra.supervisor import stat_fields


class Unreachable(InfrastructureError):
    """The machine does not answer; nothing is known about what runs there."""


class PathFacts(Frozen):
    """What stands at a path."""

    kind: Literal["file", "folder", "absent"]
    executable: bool = False
    writable: bool = False
    """For a folder, or one that is absent: whether files can be made in it."""


class Wake:
    """Ends waits of other threads; once set it stays set."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.is_set = False

    def fileno(self) -> int:
        return self._reading

    def set(self) -> None:
        self.is_set = True
        os.write(self._writing, b"w")

    def sleep(self, seconds: float) -> None:
        """Returns early when set."""
        select.select([self.fileno()], [], [], max(0.0, seconds))

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


class Machine(Protocol):
    """Files, processes and services of the machine that runs the experiment. Raises Unreachable."""

    @property
    def label(self) -> str | None:
        """How ssh is told about it; None for this machine."""
        ...

    def facts(self, path: Path) -> PathFacts: ...

    def read(self, path: Path, *, offset: int = 0, limit: int = -1) -> bytes | None:
        """Up to `limit` bytes from `offset` on; None if there is no such file."""
        ...

    def write(self, path: Path, data: bytes, *, mode: int = 0o644) -> None:
        """Replace a file in one step, making its folder; OSError if that cannot be."""
        ...

    def probe(self, attempt: AttemptPaths) -> Probe:
        """One look; `unknown` instead of Unreachable."""
        ...

    def wait(self, attempt: AttemptPaths, *, seconds: float, wake: Wake) -> Probe:
        """Like probe, after `seconds` or as soon as the attempt has ended or `wake` is set."""
        ...

    def make_folder(self, path: Path) -> None: ...

    def move(self, path: Path, target: Path) -> None:
        """Rename; a folder or file, within one file system or not."""
        ...

    def remove(self, path: Path) -> None:
        """Delete a file of ours if it is there."""
        ...

    def in_use(self, path: Path) -> bool:
        """Whether a process has this file open, or is the one whose pid the file holds."""
        ...

    def state_root(self, root: Path) -> Path:
        """Where attempts of the experiment whose state lies in `root` have their folders on this machine."""
        ...

    def wrapper_script(self, attempt: AttemptPaths) -> str:
        """A shell script that becomes the wrapper of this attempt."""
        ...

    def launch(self, attempt: AttemptPaths) -> None:
        """Start `run.sh` of the attempt without a session, detached from us."""
        ...

    def viewer(self, attempt: AttemptPaths) -> str | None:
        """A command that shows the attempt's log in a session here; None where the session runs it itself."""
        ...

    def copy(self, source: Path, target: Path, *, limit: int) -> None:
        """Copy a file, of a longer one its last `limit` bytes; nothing if it is not there."""
        ...

    def output(self, argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> str | None:
        """What a short command prints; None if it fails."""
        ...

    def has_program(self, name: str) -> bool: ...

    def environment(self) -> dict[str, str]:
        """The variables of whoever runs experiments there."""
        ...

    def answers(self, ready: Readiness) -> bool:
        """Whether a service answers at its URL or port."""
        ...

    def gpu_count(self) -> int: ...


class LocalMachine:
    """This machine."""

    label: str | None = None

    def __init__(self, *, env: Mapping[str, str]) -> None:
        self._env = dict(env)

    def facts(self, path: Path) -> PathFacts:
        if path.is_dir():
            return PathFacts(kind="folder", writable=_can_write(path))
        if path.exists():
            return PathFacts(
                kind="file", executable=os.access(path, os.X_OK), writable=os.access(path, os.W_OK)
            )
        parent = next(folder for folder in path.parents if folder.exists())
        return PathFacts(kind="absent", writable=parent.is_dir() and _can_write(parent))

    def read(self, path: Path, *, offset: int = 0, limit: int = -1) -> bytes | None:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def write(self, path: Path, data: bytes, *, mode: int = 0o644) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data, mode=mode)

    def probe(self, attempt: AttemptPaths) -> Probe:
        raw = self.read(attempt.status)
        if raw is None:
            return Probe(state="absent")
        status = Status.model_validate_json(raw)
        if status.phase == "ended" or not _alive(status):
            return Probe(state="ended", status=status)
        return Probe(state="running", status=status)

    def wait(self, attempt: AttemptPaths, *, seconds: float, wake: Wake) -> Probe:
        probe = self.probe(attempt)
        if probe.state != "running" or probe.status is None:
            return probe
        try:
            handle = os.pidfd_open(probe.status.wrapper_pid)
        except OSError:
            return self.probe(attempt)
        try:
            select.select([handle, wake.fileno()], [], [], seconds)
        finally:
            os.close(handle)
        return self.probe(attempt)

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def move(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def in_use(self, path: Path) -> bool:
        content = (self.read(path, limit=32) or b"").strip()
        if content.isdigit() and Path(f"/proc/{int(content)}").exists():
            return True
        wanted = str(path.resolve())
        return any(_open_in(process, wanted) for process in Path("/proc").glob("[0-9]*/fd"))

    def state_root(self, root: Path) -> Path:
        return root

    def wrapper_script(self, attempt: AttemptPaths) -> str:
        source = Path(posttrain.__file__).parent.parent
        argv = [sys.executable, "-S", "-P", "-m", "posttrain.blueprints.wrapper", str(attempt.folder)]
        return f"export PYTHONPATH={shlex.quote(str(source))}\nexec {shlex.join(argv)}\n"

    def launch(self, attempt: AttemptPaths) -> None:
        subprocess.Popen(
            ["bash", str(attempt.run)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def viewer(self, attempt: AttemptPaths) -> str | None:  # noqa: ARG002
        return None

    def copy(self, source: Path, target: Path, *, limit: int) -> None:
        try:
            size = source.stat().st_size
        except FileNotFoundError:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as reading, target.open("wb") as writing:
            reading.seek(max(0, size - limit))
            shutil.copyfileobj(reading, writing)

    def output(self, argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> str | None:
        try:
            done = subprocess.run(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
            return None
        return done.stdout if done.returncode == 0 else None

    def has_program(self, name: str) -> bool:
        return shutil.which(name, path=self._env.get("PATH")) is not None

    def environment(self) -> dict[str, str]:
        return dict(self._env)

    def answers(self, ready: Readiness) -> bool:
        return ready.answers()

    def gpu_count(self) -> int:
        visible = self._env.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return len([name for name in visible.split(",") if name.strip() not in {"", "-1"}])
        return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _open_in(folder: Path, wanted: str) -> bool:
    try:
        return any(str(entry.readlink()) == wanted for entry in folder.iterdir())
    except OSError:  # the process ended meanwhile
        return False


def _alive(status: Status) -> bool:
    """Whether the wrapper that wrote this still runs: same boot, same pid, same start."""
    fields = stat_fields(status.wrapper_pid)
    return (
        status.boot_id == boot_id()
        and len(fields) > 19
        and fields[19] == status.wrapper_start
        and fields[0] not in "ZX"
    )


def _can_write(folder: Path) -> bool:
    """Tried, not asked: permission bits say nothing about root or a read-only mount."""
    probe = folder / f".posttrain-{os.getpid()}-{time.monotonic_ns()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
