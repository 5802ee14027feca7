"""What an agent's reports and code look like at the moment it hands something in.

Its own files can change later; what is noted here cannot. Texts of the code are kept beside the run, one
file a content, so that claims about an early version can be checked at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from blake3 import blake3
from pydantic import Field

from posttrain.checkpoints.intake import Changed, list_folder, opened_file, opened_folder
from posttrain.core.errors import InfrastructureError, SubmissionFault
from posttrain.core.frozen import Frozen
from posttrain.core.paths import RunPaths, Workspace
from posttrain.infra.digests import digest_bytes
from posttrain.infra.files import write_atomic

logger = logging.getLogger(__name__)

REPORTS = ("summary.md", "summary.jsonl")
LARGEST_REPORT = 16 << 20
CODE_SUFFIXES = (".py", ".yaml", ".yml", ".json", ".sh")
_LARGEST_SCRIPT = 256 << 10
_MOST_SCRIPTS = 64
_MOST_BYTES = 1 << 20
_MOST_ENTRIES = 1000
_DEPTH = 3
_MOST_PREFIXES = 20
_MOST_KEPT = 500
_HEADING = b"\n## "
_SKIPPED = frozenset({"__pycache__", "node_modules", "trl", "wandb"})


class Prefix(Frozen):
    """The first `size` bytes of a file, by their digest."""

    size: int = Field(ge=0)
    digest: str


class ReportMark(Frozen):
    """What a report held: its prefixes up to where each section begins, the last being the whole of it."""

    prefixes: tuple[Prefix, ...] = ()


class Witness(Frozen):
    """Reports and code at one moment."""

    reports: dict[str, ReportMark] = Field(default_factory=dict)
    """By file name; without those that are not there or cannot be read safely."""
    code: dict[str, str] = Field(default_factory=dict)
    """Digest of each script below code/, by its name relative to the workspace."""


def take_witness(paths: RunPaths, *, redact: Callable[[str], str] = str) -> Witness:
    """Note what the reports hold and keep the texts of the code. Never fails for what an agent made there.

    `redact` takes out of the texts what no record may show; all digests are of what is left.
    """
    code: dict[str, str] = {}
    for name, read in read_scripts(paths.workspace):
        raw = without_secrets(read, redact)
        code[name] = digest_bytes(raw)
        _keep(paths.script(code[name]), raw)
    reports = {name: read_report(paths.workspace, name) for name in REPORTS}
    marks = {name: _mark(without_secrets(text, redact)) for name, text in reports.items() if text}
    return Witness(reports=marks, code=code)


def without_secrets(raw: bytes, redact: Callable[[str], str]) -> bytes:
    """Bytes of any kind, as they may lie with the run."""
    return redact(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def read_report(workspace: Workspace, name: str) -> bytes | None:
    """A file of reports/, if it is a regular one of a sane size."""
    return _read(workspace, PurePosixPath(workspace.reports.name), name, limit=LARGEST_REPORT)


def read_scripts(workspace: Workspace) -> Iterator[tuple[str, bytes]]:
    """Names and contents of small script files below code/, a bounded number of them."""
    read = 0
    for number, name in enumerate(_script_names(workspace, PurePosixPath(workspace.code.name), _DEPTH)):
        if number >= _MOST_SCRIPTS or read >= _MOST_BYTES:
            return
        raw = _read(workspace, name.parent, name.name, limit=_LARGEST_SCRIPT)
        if raw is not None:
            read += len(raw)
            yield name.as_posix().encode("utf-8", "backslashreplace").decode("utf-8"), raw


def _script_names(workspace: Workspace, folder: PurePosixPath, depth: int) -> Iterator[PurePosixPath]:
    try:
        with opened_folder(workspace.root, folder) as descriptor:
            entries = list_folder(descriptor, limit=_MOST_ENTRIES)
    except (SubmissionFault, InfrastructureError, OSError):
        return
    for entry in entries:
        if not entry.is_folder and entry.name.endswith(CODE_SUFFIXES):
            yield folder / entry.name
    for entry in entries:
        if entry.is_folder and depth > 1 and not entry.name.startswith(".") and entry.name not in _SKIPPED:
            yield from _script_names(workspace, folder / entry.name, depth - 1)


def _read(workspace: Workspace, folder: PurePosixPath, name: str, *, limit: int) -> bytes | None:
    try:
        with (
            opened_folder(workspace.root, folder) as parent,
            opened_file(parent, name) as (descriptor, seen),
            open(descriptor, "rb", closefd=False) as file,
        ):
            return file.read(limit + 1) if seen.size <= limit else None
    except (SubmissionFault, InfrastructureError, Changed, OSError):
        return None


def changed_at(workspace: Workspace, name: str) -> float | None:
    """Unix seconds of a file's last change; None where it is gone."""
    try:
        return (workspace.root / name).lstat().st_mtime
    except OSError:
        return None


def _mark(raw: bytes) -> ReportMark:
    sizes = list(_section_starts(raw))[-_MOST_PREFIXES:]
    digests = prefix_digests(raw, [*sizes, len(raw)])
    return ReportMark(prefixes=tuple(Prefix(size=size, digest=text) for size, text in digests.items()))


def _section_starts(raw: bytes) -> Iterator[int]:
    """Where sections of Markdown begin, or else every line: a row of JSON is a section of its own."""
    mark = _HEADING if _HEADING in raw else b"\n"
    place = raw.find(mark)
    while place >= 0:
        yield place + 1
        place = raw.find(mark, place + 1)


def prefix_digests(raw: bytes, sizes: Iterable[int]) -> dict[int, str]:
    """Digests of the first bytes of a file, in one pass; without sizes that it does not have."""
    hasher, done, found = blake3(), 0, dict[int, str]()
    for size in sorted(set(sizes)):
        if size > len(raw):
            break
        hasher.update(raw[done:size])
        done = size
        found[size] = hasher.hexdigest()
    return found


def _keep(path: Path, raw: bytes) -> None:
    """One file a content; a disk that is full costs the copy, not the submission."""
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if sum(1 for _ in path.parent.iterdir()) >= _MOST_KEPT:
            return
        write_atomic(path, raw, durable=False)
    except OSError as error:
        logger.warning("%s could not be kept: %s", path.name, error.strerror)
