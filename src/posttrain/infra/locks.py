"""One process at a time for work that others would repeat; the rest wait and say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_POLL_S = 0.2


@contextmanager
def held(path: Path, what: str, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file at `path`; the kernel frees it when the process ends, however it ends.

    After a failure the file is removed: wrong use leaves nothing behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that fetches {what}")
        lock.acquire(poll_interval=_POLL_S)
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        lock.release()
