"""The run's own clock, as anybody in the workspace can read it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path


def deadline(workspace: Path, env: Mapping[str, str]) -> float:
    """When the run ends, in Unix seconds: from run_meta.json, else from $DEADLINE."""
    try:
        meta = json.loads((workspace / "run_meta.json").read_text("utf-8"))
        return float(meta["start_time"]) + float(meta["timeout_s"])
    except (OSError, ValueError, TypeError, KeyError):
        return float(env.get("DEADLINE", "0"))


def told(seconds: float) -> str:
    """As `2h 05m 09s`."""
    whole = max(0, int(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    head = f"{hours}h {minutes:02}m " if hours else f"{minutes}m " if minutes else ""
    return f"{head}{whole % 60:02}s" if head else f"{whole}s"


def left(workspace: Path, env: Mapping[str, str]) -> float:
    """Seconds until then; negative after it."""
    return deadline(workspace, env) - time.time()
