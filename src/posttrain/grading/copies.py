"""The lab's own copies of submissions: which there are, which may still be needed, which can go."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from posttrain.checkpoints.snapshot import Snapshot
from posttrain.core.paths import RunPaths
from posttrain.infra.digests import digest_tree


class Copies:
    """submissions/<n>/ of one run. A folder there is complete: copies appear whole or not at all."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        paths.submissions.mkdir(parents=True, exist_ok=True)
        for part in paths.submissions.glob(".*.part"):
            shutil.rmtree(part, ignore_errors=True)  # a copy that a death cut off
        self._kept = {int(path.name) for path in paths.submissions.iterdir() if path.name.isdecimal()}

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def folder(self, number: int) -> Path:
        return self._paths.submission(number)

    def add(self, number: int) -> None:
        """`take_snapshot` has made this one."""
        with self._lock:
            self._kept.add(number)

    def adopt(self, number: int, *, owner: int) -> None:
        """Equal content is kept once, under the number that was graded."""
        with self._lock:
            if owner not in self._kept:
                self.folder(number).rename(self.folder(owner))
                self._kept = (self._kept - {number}) | {owner}

    def remove(self, numbers: set[int]) -> None:
        """Remove these. The caller sees to it that none of them is adopted meanwhile."""
        with self._lock:
            unwanted = self._kept & numbers
            self._kept -= unwanted
        for number in unwanted:
            shutil.rmtree(self.folder(number), ignore_errors=True)

    def describe(self, number: int) -> Snapshot:
        """What a kept copy holds, read from the copy itself."""
        folder = self.folder(number)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return Snapshot(
            digest=digest_tree(folder),
            files=tuple(path.name for path in files),
            ignored=(),
            bytes=sum(path.stat().st_size for path in files),
        )
