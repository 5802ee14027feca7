"""Where an experiment runs: here (local.py) or behind ssh (ssh.py). Executors know only this contract."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from posttrain.blueprints.attempt import AttemptPaths
from posttrain.blueprints.readiness import Readiness
from posttrain.blueprints.status import Probe
from posttrain.core.errors import InfrastructureError
from posttrain.core.frozen import Frozen


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

    def tail(self, path: Path, *, limit: int) -> bytes:
        """The last `limit` bytes; empty if there is no such file."""
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
