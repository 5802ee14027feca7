"""Facts as they are to be had in a workspace: exports, logs, the code, and what the grading server says."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from posttrain.checkpoints.intake import Changed, opened_file, opened_folder, printable
from posttrain.core.errors import InfrastructureError, SubmissionFault, UsageError
from posttrain.core.grading import Verdict
from posttrain.core.paths import Workspace
from posttrain.grading.witness import changed_at, read_scripts
from posttrain.infra.walking import walk
from posttrain.reports.summaries.facts import Facts, Handed, Log
from posttrain.reports.summaries.script import Script

LOG_PART = 8 << 20
_OTHER_PART = 1 << 20
_LARGEST_JSON = 16 << 20
_MOST_LOGS = 24
_DEPTH = 2
_MOST_LOOKED = 2000
_LOG_SUFFIXES = (".log", ".txt", ".out", ".err")
_COPY = "copy_of_base"
_LATEST = 1e11
_NAMES: Mapping[type, str] = {dict: "object", list: "list"}
_MOVE = "move it away, the lab writes it anew with the next submission"
_T = TypeVar("_T", dict[str, Any], list[Any])


def workspace_facts(folder: Path, *, served: Iterable[Mapping[str, Any]] = (), now: float) -> Facts:
    """What the exports, the logs and the code say; `served` are entries of the grading server.

    UsageError names an export that is there and is not what the lab writes.
    """
    workspace = Workspace(folder)
    meta = _read_json(workspace.run_meta, dict) or {}
    scores = _read_json(workspace.scores, list)
    entries = {entry.number: entry for entry in _handed(scores or [])}
    entries |= {entry.number: entry for entry in _handed(served)}
    main = [read_log(workspace.root / name) for name in (workspace.agent_log.name, workspace.run_log.name)]
    known = [log for log in main if log is not None]
    return Facts(
        handed=tuple(entries[number] for number in sorted(entries)),
        handed_known=scores is not None or bool(entries),
        start=_seconds(workspace, meta, "start_time"),
        timeout_s=_seconds(workspace, meta, "timeout_s"),
        end=_seconds(workspace, meta, "end_time"),
        now=now,
        scripts=tuple(current_scripts(workspace)),
        logs=(*known, *other_logs(workspace)),
        logs_known=bool(known),
    )


def current_scripts(workspace: Workspace) -> Iterator[Script]:
    """The code as it is."""
    for name, raw in read_scripts(workspace):
        yield Script(name, raw.decode("utf-8", "replace"), changed_at(workspace, name))


def _read_json(path: Path, kind: type[_T]) -> _T | None:
    """What an export holds; None where there is none."""
    if not os.path.lexists(path):
        return None
    raw = read_part(path, _LARGEST_JSON)
    if raw is None:
        raise UsageError(f"{path} is no file that can be read; {_MOVE}")
    try:
        content = json.loads(raw[0], parse_constant=_refuse)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, kind):
        raise UsageError(f"{path} does not hold a JSON {_NAMES[kind]}; {_MOVE}")
    return content


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _seconds(workspace: Workspace, meta: Mapping[str, Any], name: str) -> float | None:
    """A time of run_meta.json; None where it is not known."""
    if meta.get(name) is None:
        return None
    value = _number(meta[name])
    if value is None or not 0 <= value <= _LATEST:
        raise UsageError(f"{workspace.run_meta}: {name} is no time in seconds; {_MOVE}")
    return value


def _handed(entries: Iterable[Any]) -> Iterator[Handed]:
    """Entries of scores.json or of the server; what is no verdict is passed over."""
    for entry in entries:
        if not isinstance(entry, Mapping):
            continue
        try:
            status = Verdict(entry.get("status", Verdict.GRADED if "score" in entry else Verdict.ERROR))
            at = datetime.fromisoformat(str(entry["timestamp"])).timestamp()
            number = int(entry["submission_id"])
        except (ValueError, KeyError, TypeError, OverflowError, OSError):
            continue
        gain = _number(entry.get("improvement"))
        flags = entry.get("flags")
        yield Handed(
            number=number,
            at=at,
            path=str(entry.get("model_path", ""))[:4096],
            status=status,
            score=_number(entry.get("score")),
            improvement=gain,
            baseline=_number(entry.get("baseline_score")),
            copy_of_base=_COPY in flags if isinstance(flags, list) else False,
            note=note if isinstance(note := entry.get("note"), str) else None,
            error=error if isinstance(error := entry.get("error"), str) else None,
            waited=_number(entry.get("elapsed_seconds")) or 0.0,
        )


def _number(value: Any) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and abs(value) < 1e15 and math.isfinite(value) else None


# --- logs


def other_logs(workspace: Workspace) -> Iterator[Log]:
    """Logs that the agent keeps itself, a bounded number: below code/ and output/, and beside them.

    No link is followed: the lab can read more than the agent could.
    """
    found = 0
    for relative in _log_files(workspace):
        if found == _MOST_LOGS:
            return
        log = _read_inside(workspace.root, relative)
        if log is not None:
            found += 1
            yield log


def _log_files(workspace: Workspace) -> Iterator[PurePosixPath]:
    """Below each of the places, with a bound on how far it is looked."""
    main = (workspace.agent_log.name, workspace.run_log.name)
    yield from (
        name for name in _logs_below(workspace.root, PurePosixPath(), depth=0) if str(name) not in main
    )
    for folder in (workspace.code, workspace.output, workspace.reports):
        if not folder.is_symlink():
            yield from _logs_below(workspace.root, PurePosixPath(folder.name), depth=_DEPTH)


def _logs_below(root: Path, start: PurePosixPath, *, depth: int) -> Iterator[PurePosixPath]:
    looked = 0
    for listing in walk(root / start):
        listing.folders[:] = listing.folders[:20] if len(listing.folder.parts) < depth else []
        for name in listing.others[:500]:
            looked += 1
            if looked == _MOST_LOOKED:
                return
            if name.endswith(_LOG_SUFFIXES):
                yield start / listing.folder / name


def _read_inside(root: Path, relative: PurePosixPath) -> Log | None:
    try:
        with (
            opened_folder(root, relative.parent) as folder,
            opened_file(folder, relative.name) as (descriptor, seen),
        ):
            raw, whole = _parts(descriptor, seen.size, _OTHER_PART, tail=True)
    except (SubmissionFault, InfrastructureError, Changed, OSError):
        return None
    return Log(printable(str(relative)), raw.decode("utf-8", "replace"), whole)


def read_log(path: Path) -> Log | None:
    """The beginning and the end of a log of the lab's own, if it is a regular file."""
    found = read_part(path, LOG_PART, tail=True)
    if found is None:
        return None
    raw, whole = found
    return Log(path.name, raw.decode("utf-8", "replace"), whole)


def read_part(path: Path, part: int, *, tail: bool = False) -> tuple[bytes, bool] | None:
    """Up to `part` bytes from the beginning (and from the end), and whether that is all of the file.

    None for what is no regular file: a pipe in its place must not hold anybody up.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return _parts(descriptor, status.st_size, part, tail=tail)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _parts(descriptor: int, size: int, part: int, *, tail: bool) -> tuple[bytes, bool]:
    with open(descriptor, "rb", closefd=False) as file:
        raw = file.read(part)
        if size <= part:
            return raw, True
        if tail:
            file.seek(max(part, size - part))
            raw += b"\n" + file.read(part)
        return raw, size <= 2 * part and tail
