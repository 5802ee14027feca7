"""Experiments on this machine."""

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

import posttrain
from posttrain.blueprints.attempt import AttemptPaths, boot_id
from posttrain.blueprints.environment import without_secrets
from posttrain.blueprints.machine import PathFacts, Wake
from posttrain.blueprints.readiness import Readiness
from posttrain.blueprints.status import Probe, Status
from posttrain.infra.files import write_atomic
from posttrain.infra.supervisor import stat_fields


class LocalMachine:
    """The machine that the executor runs on."""

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

    def tail(self, path: Path, *, limit: int) -> bytes:
        size = path.stat().st_size if path.is_file() else 0
        return self.read(path, offset=max(0, size - limit)) or b""

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
            env=without_secrets(self._env),
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
