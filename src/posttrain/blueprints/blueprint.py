"""What a blueprint says once it is understood, and what can be wrong with one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field

from posttrain.core.frozen import Frozen


class Label(StrEnum):
    """The parts of a blueprint by the names that the format gives them."""

    PURPOSE = "exp_purpose"
    CODEBASE = "exp_codebase_dir"
    PYTHON = "exp_venv_exe"
    YAML = "exp_yaml_path"
    COMMAND = "exp_launch_command"
    RESULTS = "exp_result_dir"
    MAX_TIME = "exp_max_time"
    NOTES = "exp_notes"
    SERVICE = "exp_service_command"
    SERVICE_READY = "exp_service_ready"


REQUIRED = tuple(Label)[:7]


class Problem(Frozen):
    """One finding of `posttrain blueprint check`."""

    line: int = Field(ge=1)
    label: Label | None
    level: Literal["error", "warning"]
    message: str

    def __str__(self) -> str:
        name = f"[{self.label.value}] " if self.label else ""
        return f"line {self.line}: {self.level}: {name}{self.message}"


class Blueprint(Frozen):
    """An experiment: what is run where, for how long, and where its documents go."""

    source: Path
    purpose: str
    codebase: Path
    python: Path
    """The interpreter; its folder comes first in PATH."""
    yaml: Path
    """Absolute."""
    command: str
    results: Path
    max_time_s: float = Field(gt=0)
    notes: str = ""
    service_command: str | None = None
    service_ready: str | None = None
    """A URL, a port, `host:port`, or a pattern in the service's log."""
