"""Looking into a folder that somebody else can change: descriptors, no links, regular files only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from posttrain.core.errors import InfrastructureError, Rejected, Unloadable

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LINK_HINT = "Put real files there: cp -rL SOURCE TARGET copies what links point to."


class Changed(Exception):
    """The folder was not the same before and after; a second look may find it at rest."""


@dataclass(frozen=True)
class Entry:
    """One name in a folder, as listed; nothing was opened."""

    name: str
    is_folder: bool


@dataclass(frozen=True)
class Seen:
    """What must stay equal while a file is copied. ctime is the one that no one can set back."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Seen:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@contextmanager
def opened_folder(root: Path, relative: PurePosixPath) -> Iterator[int]:
    """A descriptor of `root/relative`, each component opened from the one before and none a link.

    Raises Rejected where a component is a link, Unloadable where one is missing or no folder.
    """
    folder = os.open(root, _FOLDER)
    try:
        for part in relative.parts:
            inner = _open_component(part, folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _open_component(name: str, parent: int) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        raise _explained(error, name, parent) from error


def list_folder(folder: int, *, limit: int) -> list[Entry]:
    """All names in a folder, sorted; Rejected over `limit`, so that a full folder can't hold us up."""
    entries: list[Entry] = []
    with os.scandir(folder) as found:
        for entry in found:
            if len(entries) >= limit:
                raise Rejected(
                    f"the folder has more than {limit} entries",
                    hint="Submit a folder that holds one checkpoint and nothing else.",
                )
            entries.append(Entry(entry.name, entry.is_dir(follow_symlinks=False)))
    return sorted(entries, key=lambda entry: entry.name)


@contextmanager
def opened_file(folder: int, name: str) -> Iterator[tuple[int, Seen]]:
    """A descriptor of a regular file with one name, and what it looked like when it was opened.

    Raises Rejected for links, hard links, devices, pipes and sockets, Unloadable where it can't be read.
    A sparse file is a regular file: what is copied of it counts in full.
    """
    _refuse_special(look(folder, name), name)  # before opening: even opening a device can have effects
    try:
        file = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise _explained(error, name, folder) from error
    try:
        status = os.fstat(file)
        _refuse_special(status, name)
        yield file, Seen.of(status)
    finally:
        os.close(file)


def look(folder: int, name: str) -> os.stat_result:
    """The status of a name itself, a link not followed; Changed if it is gone."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError as error:
        raise Changed(f"{printable(name)} disappeared") from error
    except OSError as error:
        raise InfrastructureError(f"{printable(name)}: {error.strerror}") from error


def _refuse_special(status: os.stat_result, name: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise Rejected(f"{printable(name)} is a symbolic link", hint=_LINK_HINT)
    if not stat.S_ISREG(status.st_mode):
        raise Rejected(f"{printable(name)} is not a regular file", hint=_LINK_HINT)
    if status.st_nlink > 1:  # its content may belong to somebody who never handed it in
        raise Rejected(
            f"{printable(name)} is a hard link",
            hint="Give the checkpoint files of its own: cp -r, not cp -l.",
        )


def _explained(error: OSError, name: str, parent: int) -> Exception:
    """What an agent should hear about a name that could not be opened."""
    shown = printable(name)
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, parent):
        return Rejected(f"{shown} is a symbolic link", hint=_LINK_HINT)
    if error.errno == errno.ENOTDIR:
        return Unloadable(f"{shown} is not a folder", hint="Submit the folder that holds model.safetensors.")
    if error.errno == errno.ENOENT:
        return Unloadable(f"{shown} does not exist", hint="Submit a folder that stays until it is graded.")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Unloadable(f"{shown} cannot be read by the grader", hint=f"chmod -R u+rX {shown}")
    return InfrastructureError(f"{shown}: {error.strerror}")


def _is_link(name: str, parent: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False


def printable(name: str) -> str:
    """A file name as it can stand in a log line: control characters and broken UTF-8 as escapes."""
    clean = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in clean
    )
