"""The folder of a run: made under a unique name, locked while one harness works on it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunRequest
from posttrain.infra.files import write_json

_WORTH_KEEPING = 64 << 20
"""A downloaded model is kept, also when something else is missing then."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def new_run(lab: LabPaths, request: RunRequest, *, now: datetime) -> RunPaths:
    """A fresh folder `runs/<task>/<time with milliseconds>_<agent>` with request.json in it.

    Two runs that start in the same millisecond get different names.
    """
    agent = _UNSAFE.sub("-", request.agent)
    stamp = now.strftime("%Y%m%dT%H%M%S-") + f"{now.microsecond // 1000:03d}"
    for attempt in range(1000):
        name = f"{stamp}_{agent}" if attempt == 0 else f"{stamp}.{attempt}_{agent}"
        paths = lab.run(request.task, name)
        try:
            paths.root.mkdir(parents=True)
            write_json(paths.request, request)
        except FileExistsError:
            continue
        except OSError as error:
            shutil.rmtree(paths.root, ignore_errors=True)
            raise UsageError(f"POSTTRAIN_HOME: {paths.root}: {error.strerror}") from error
        return paths
    raise InfrastructureError(f"no free name for a run at {stamp}")


@contextmanager
def locked(paths: RunPaths) -> Iterator[None]:
    """One harness per run; a second one is told which run is taken."""
    lock = FileLock(paths.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"run {paths.run_id} is being worked on by another posttrain process") from error
    except OSError as error:
        raise UsageError(f"run {paths.run_id}: {paths.lock}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def worked_on(paths: RunPaths) -> bool:
    """Whether a harness has the run now; changes nothing in its folder."""
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)  # and with it the lock
    return False


class Footprint:
    """Undoes what a command that turned out to be wrong use has created in the lab home."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._existing = next(folder for folder in (home, *home.parents) if folder.exists())

    def erase(self, run: RunPaths | None) -> None:
        """Remove the run's folder, and the whole lab home if it is new and nothing costly was fetched."""
        if run is not None:
            shutil.rmtree(run.root, ignore_errors=True)
            _remove_empty(run.root.parent, down_to=self._home)
        if self._existing != self._home and _bytes(self._home) < _WORTH_KEEPING:
            shutil.rmtree(self._home, ignore_errors=True)
            _remove_empty(self._home.parent, down_to=self._existing)


def _remove_empty(folder: Path, *, down_to: Path) -> None:
    while folder != down_to and folder.is_relative_to(down_to):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file() and not path.is_symlink())
