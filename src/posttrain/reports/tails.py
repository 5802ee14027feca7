"""Reading the end of a file that others may have made into anything."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from posttrain.checkpoints.intake import Changed, opened_file, opened_folder
from posttrain.core.errors import InfrastructureError, SubmissionFault


class Tail(NamedTuple):
    """The end of a file."""

    content: bytes
    size: int
    """Of the whole file."""

    @property
    def left_out(self) -> int:
        """Bytes before the content."""
        return self.size - len(self.content)


def read_tail(root: Path, relative: str, *, most: int) -> Tail | None:
    """At most the last `most` bytes of the regular file `relative` below `root`, from a line's beginning.

    None if there is none. No link is followed and no pipe waited for; of a file that grows, what it had.
    """
    path = PurePosixPath(relative)
    try:
        with (
            opened_folder(root, path.parent) as folder,
            opened_file(folder, path.name) as (descriptor, seen),
        ):
            start = max(0, seen.size - most)
            content = os.pread(descriptor, min(most, seen.size), start)
    except (SubmissionFault, InfrastructureError, Changed, OSError):
        return None
    return Tail(_from_line(content) if start else content, seen.size)


def _from_line(content: bytes) -> bytes:
    """Without the rest of a cut line, unless there is nothing else."""
    _, end, rest = content.partition(b"\n")
    return rest if end and rest else content
