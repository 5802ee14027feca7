"""The folder of one attempt: what executor and wrapper hand each other. Standard library only.

attempts/<n>/
├── job.json      executor → wrapper: what to run, under which limit (holds the environment: mode 600)
├── launch.sh     the blueprint's command as a script, with its `cd`
├── run.sh        what is sent to the session: starts the wrapper
├── claim         locked by the one wrapper that may run
├── stop.json     executor → wrapper: end the command, and why
├── status.json   wrapper → executor: phase, exit code, activity; replaced atomically
├── output.log    everything the command wrote, with times
└── screen.txt    the last screen of the session, taken before it is closed
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class AttemptPaths:
    """File names inside the folder of one attempt."""

    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job.json"

    @property
    def launch(self) -> Path:
        return self.folder / "launch.sh"

    @property
    def run(self) -> Path:
        return self.folder / "run.sh"

    @property
    def claim(self) -> Path:
        return self.folder / "claim"

    @property
    def stop(self) -> Path:
        return self.folder / "stop.json"

    @property
    def status(self) -> Path:
        return self.folder / "status.json"

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def screen(self) -> Path:
        return self.folder / "screen.txt"


def replace_json(path: Path, value: Any, *, durable: bool) -> None:
    """Write JSON so that a reader sees the old document or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """The document, or None where there is none (or none that can be read)."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def boot_id() -> str:
    """Differs after every start of the machine, so that old pids are never mistaken for new ones."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
