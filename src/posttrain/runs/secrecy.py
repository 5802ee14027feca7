"""Values that no file of the lab may show: keys that were passed to an agent, and what looks like one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from posttrain.core.runs import RunPlan
from posttrain.core.specs import AgentSpec
from posttrain.grading.redaction import SHOWN
from posttrain.reports.results import DRIVER_VARIABLES

_SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SHORTEST = 8
"""Shorter values (`true`, `0.7`) are no secrets, and taking them out would garble every log."""
_BLOCK = 1 << 20


def secret_values(plan: RunPlan, agent: AgentSpec, host: Mapping[str, str]) -> tuple[str, ...]:
    """Values of the variables that were passed by name, but the driver model's name, which reports tell;
    and of the agent's own variables that are called a key, token, secret or password. The longest first.
    """
    passed = {name: host[name] for name in plan.env_names if name in host and name not in DRIVER_VARIABLES}
    own = {name: value for name, value in agent.env_vars.items() if name.upper().endswith(_SECRET_ENDINGS)}
    found = {value for value in (*passed.values(), *own.values()) if len(value) >= _SHORTEST}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def redact_file(path: Path, secrets: Sequence[str]) -> int:
    """Take secrets out of a file that nobody writes any more; how many there were.

    The file is replaced in one step, and left alone where there are none.
    """
    needles = [secret.encode() for secret in secrets if secret]
    if not needles or not path.is_file() or not _holds_any(path, needles):
        return 0
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        found = _copy_without(path, temporary, needles)
        shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return found


def _holds_any(path: Path, needles: Sequence[bytes]) -> bool:
    kept = b""
    longest = max(map(len, needles))
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            window = kept + block
            if any(needle in window for needle in needles):
                return True
            kept = window[-longest:]
    return False


def _copy_without(source: Path, target: Path, needles: Sequence[bytes]) -> int:
    """What may be the beginning of a secret waits for the next block."""
    found, pending = 0, b""
    longest = max(map(len, needles))
    with source.open("rb") as reading, target.open("wb") as writing:
        while True:
            block = reading.read(_BLOCK)
            pending += block
            for needle in needles:
                found += pending.count(needle)
                pending = pending.replace(needle, SHOWN.encode())
            ready = len(pending) if not block else max(0, len(pending) - longest)
            writing.write(pending[:ready])
            pending = pending[ready:]
            if not block:
                break
        writing.flush()
        os.fsync(writing.fileno())
    return found
