"""What a child process may see: its view of files, identity and network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Isolation = Literal["bwrap", "none"]


@dataclass(frozen=True)
class View:
    """The surroundings of one child, as arguments for bubblewrap."""

    isolation: Isolation
    bwrap_options: tuple[str, ...]

    @classmethod
    def host(cls) -> View:
        """Everything that the harness sees; only the processes of the host are out of sight."""
        return cls(isolation="none", bwrap_options=("--dev-bind", "/", "/", "--proc", "/proc"))
