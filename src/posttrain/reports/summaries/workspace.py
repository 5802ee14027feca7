"""Facts as they are to be had in a workspace: exports, logs, the code, and what the grading server says."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from posttrain.core.grading import Verdict
from posttrain.core.paths import Workspace
from posttrain.grading.witness import changed_at, read_scripts
from posttrain.reports.summaries.facts import Facts, Handed, Log
from posttrain.reports.summaries.script import Script

LOG_PART = 8 << 20
_OTHER_PART = 1 << 20
_LARGEST_JSON = 16 << 20
_MOST_LOGS = 24
_LOG_SUFFIXES = (".log", ".txt", ".out", ".err")
_COPY = "copy_of_base"


def workspace_facts(folder: Path, *, served: Iterable[Mapping[str, Any]] = (), now: float) -> Facts:
    """What the exports, the logs and the code say; `served` are entries of the grading server."""
    workspace = Workspace(folder)
    meta = _read_json(workspace.run_meta)
    meta = meta if isinstance(meta, dict) else {}
    scores = _read_json(workspace.scores)
    entries = {entry.number: entry for entry in _handed(scores if isinstance(scores, list) else [])}
    entries |= {entry.number: entry for entry in _handed(served)}
    main = [read_log(workspace.root / name) for name in (workspace.agent_log.name, workspace.run_log.name)]
    known = [log for log in main if log is not None]
    return Facts(
        handed=tuple(entries[number] for number in sorted(entries)),
        handed_known=isinstance(scores, list) or bool(entries),
        start=_number(meta.get("start_time")),
        timeout_s=_number(meta.get("timeout_s")),
        end=_number(meta.get("end_time")),
        now=now,
        scripts=tuple(current_scripts(workspace)),
        logs=(*known, *other_logs(workspace)),
        logs_known=bool(known),
    )


def current_scripts(workspace: Workspace) -> Iterator[Script]:
    """The code as it is."""
    for name, raw in read_scripts(workspace):
        yield Script(name, raw.decode("utf-8", "replace"), changed_at(workspace, name))


def _read_json(path: Path) -> Any:
    raw = read_part(path, _LARGEST_JSON)
    if raw is None:
        return None
    try:
        return json.loads(raw[0])
    except (ValueError, RecursionError):
        return None


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
    """Logs that the agent keeps itself, a bounded number: below code/ and output/, and beside them."""
    found = 0
    for root in (workspace.root, workspace.code, workspace.output, workspace.reports):
        for path in _log_files(root, deep=root != workspace.root):
            if path in (workspace.agent_log, workspace.run_log):
                continue
            if found == _MOST_LOGS:
                return
            log = read_log(path, part=_OTHER_PART, name=str(path.relative_to(workspace.root)))
            if log is not None:
                found += 1
                yield log


def _log_files(root: Path, *, deep: bool) -> Iterator[Path]:
    if root.is_symlink():
        return
    looked = 0
    for folder, folders, files in os.walk(root):
        folders[:] = (
            sorted(folders)[:20] if deep and folder.count(os.sep) - str(root).count(os.sep) < 2 else []
        )
        for name in sorted(files)[:500]:
            looked += 1
            if name.endswith(_LOG_SUFFIXES) and looked < 2000:
                yield Path(folder) / name


def read_log(path: Path, *, part: int = LOG_PART, name: str | None = None) -> Log | None:
    """The beginning and the end of a log, if it is a regular file."""
    found = read_part(path, part, tail=True)
    if found is None:
        return None
    raw, whole = found
    return Log(name or path.name, raw.decode("utf-8", "replace"), whole)


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
        with open(descriptor, "rb", closefd=False) as file:
            raw = file.read(part)
            if status.st_size <= part:
                return raw, True
            if tail:
                file.seek(max(part, status.st_size - part))
                raw += b"\n" + file.read(part)
            return raw, status.st_size <= 2 * part and tail
    except OSError:
        return None
    finally:
        os.close(descriptor)
