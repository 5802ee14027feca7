"""What a model's files were when they were accepted, and whether they still are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError

from posttrain.core.frozen import Frozen
from posttrain.infra.digests import digest_file, digest_value
from posttrain.infra.files import write_json


class FileStamp(Frozen):
    """One file: its content by digest, and what tells cheaply that nobody touched it."""

    name: str
    size: int = Field(ge=0)
    mtime_ns: int
    inode: int
    digest: str

    def untouched(self, status: os.stat_result) -> bool:
        """Whether size, time and inode are still the same."""
        return (self.size, self.mtime_ns, self.inode) == (
            status.st_size,
            status.st_mtime_ns,
            status.st_ino,
        )


class Manifest(Frozen):
    """The record of one model, written after everything it lists is complete."""

    format: int = 1
    source: str
    """Where the files came from, in words: hub, package, folder."""
    revision: str | None = None
    """The commit that the hub named, or the version of a package."""
    location: str | None = None
    """Absolute folder of the files where it is not the manifest's own: an adopted, read-only source."""
    files: tuple[FileStamp, ...]
    made_by: dict[str, str] = Field(default_factory=dict)
    """Versions of the libraries that converted the files, where that happened here."""
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """BLAKE3 over names and contents; the model's identity."""
        return digest_value({file.name: file.digest for file in self.files})

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def stamp_files(folder: Path, names: Iterable[str]) -> tuple[FileStamp, ...]:
    """Read every file once and record it, in order of names."""
    return tuple(_stamp(folder, name) for name in sorted(names))


def _stamp(folder: Path, name: str) -> FileStamp:
    path = folder / name
    status = path.stat()
    return FileStamp(
        name=name,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        inode=status.st_ino,
        digest=digest_file(path),
    )


def write_manifest(path: Path, manifest: Manifest) -> None:
    write_json(path, manifest)


def read_manifest(path: Path) -> Manifest | None:
    """The manifest, or None if there is no whole one."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def difference(manifest: Manifest, folder: Path, present: Iterable[str]) -> str | None:
    """What changed, in words that name the file; None if the content is what was recorded.

    `present` are the files that count in the folder now. A file is read only if its size, time or
    inode differ.
    """
    recorded = {file.name: file for file in manifest.files}
    found = set(present)
    if missing := sorted(recorded.keys() - found):
        return f"{missing[0]} is missing"
    if added := sorted(found - recorded.keys()):
        return f"{added[0]} was not there before"
    for name, file in recorded.items():
        try:
            if file.untouched((folder / name).stat()):
                continue
            if file.digest != digest_file(folder / name):
                return f"{name} has other content"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def restamped(manifest: Manifest, folder: Path) -> Manifest | None:
    """The manifest with today's times and inodes, or None if they are the recorded ones already.

    For a folder whose content is known to be equal: a lab home that was moved or restored.
    """
    files = []
    for file in manifest.files:
        status = (folder / file.name).stat()
        files.append(
            file.model_copy(update={"mtime_ns": status.st_mtime_ns, "inode": status.st_ino}),
        )
    fresh = manifest.model_copy(update={"files": tuple(files)})
    return None if fresh == manifest else fresh
