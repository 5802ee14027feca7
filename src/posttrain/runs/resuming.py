"""Whether an interrupted run can go on: the plan must come out as it was."""

from __future__ import annotations

from itertools import chain
from typing import Any

from pydantic import ValidationError

from posttrain.core.errors import UsageError
from posttrain.core.paths import RunPaths
from posttrain.core.runs import RunPlan, RunRecord, RunRequest

_SHOWN = 60


def read_request(paths: RunPaths) -> RunRequest:
    """What the run was asked for; UsageError if that cannot be read."""
    try:
        return RunRequest.model_validate_json(paths.request.read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(
            f"--resume {paths.run_id}: {paths.request} cannot be read: {_line(error)}"
        ) from error


def closed_record(paths: RunPaths) -> RunRecord | None:
    """The record of a run that needs nothing more; None for one that was interrupted or never got there."""
    try:
        record = RunRecord.model_validate_json(paths.record.read_bytes())
    except (OSError, ValidationError):
        return None
    return record if record.closed else None


def planned(paths: RunPaths, *, fresh: RunPlan, allow_version_change: bool) -> RunPlan:
    """The plan to go on with: the one on disk, if making it again today gives the same.

    Without a plan on disk nothing of the run has happened, and the fresh one is it. UsageError names
    every field that differs and what it was.
    """
    if not paths.plan.exists():
        if paths.ledger.exists():
            raise UsageError(f"--resume {paths.run_id}: {paths.plan} is missing, and the run has begun")
        return fresh
    kept = read_plan(paths)
    changed = differences(kept.fingerprint(), fresh.fingerprint())
    if allow_version_change:
        changed = {name: pair for name, pair in changed.items() if name != "version"}
    if changed:
        told = "; ".join(
            f"{name} was {_short(old)}, is {_short(new)}" for name, (old, new) in changed.items()
        )
        remedy = " (--allow-version-change goes on all the same)" if set(changed) == {"version"} else ""
        raise UsageError(f"--resume {paths.run_id}: the plan is not the same: {told}{remedy}")
    return kept


def read_plan(paths: RunPaths) -> RunPlan:
    """The plan on disk; UsageError if it is no plan."""
    try:
        return RunPlan.model_validate_json(paths.plan.read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(f"--resume {paths.run_id}: {paths.plan} is damaged: {_line(error)}") from error


def tidy(paths: RunPaths) -> None:
    """Remove what writes that a death cut off have left; the files themselves are whole or not there."""
    workspace = paths.workspace
    ours = (*paths.root.glob(".*.tmp"), *paths.reports.rglob(".*.tmp"), *paths.grading.glob("*/.*.tmp"))
    exports = (workspace.scores, workspace.run_meta, workspace.prompt_settings, workspace.prompt_samples)
    theirs = (path.parent.glob(f".{path.name}.*.tmp") for path in exports)
    for left in (*ours, *chain.from_iterable(theirs)):
        if left.is_file() and not left.is_symlink():
            left.unlink()


def differences(old: Any, new: Any, *, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Leaves of two JSON values that differ, by dotted name."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in sorted(old.keys() | new.keys()):
            inner = f"{name}.{key}" if name else key
            found |= differences(old.get(key), new.get(key), name=inner)
        return found
    return {} if old == new else {name: (old, new)}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
