"""Real runs of small agents: the tiny model, the scripted engine, the command line in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.core.paths import LabPaths, RunPaths


@dataclass
class Bench:
    """A lab home with a tiny base model, and commands run in processes of their own."""

    lab: LabPaths
    base: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def agents(self) -> Path:
        return self.lab.agents

    def posttrain(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "posttrain", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.lab.home.parent,
            env={**os.environ, "POSTTRAIN_HOME": str(self.lab.home), **self.environment},
            timeout=180,
        )

    def run(self, agent: str, *options: str, task: str = "boolean") -> subprocess.CompletedProcess[str]:
        """`posttrain run` with small defaults; a later option of the same name wins."""
        return self.posttrain(
            *("run", "--agent", agent, "--task", task, "--model", str(self.base), "--engine", "scripted"),
            *("--limit", "20", "--timeout", "60", "--port", "0", *options),
        )

    @property
    def runs(self) -> list[RunPaths]:
        return [RunPaths(path) for path in sorted(self.lab.runs.glob("*/*"))]

    @property
    def only(self) -> RunPaths:
        (paths,) = self.runs
        return paths


def answers(paths: RunPaths) -> list[dict[str, Any]]:
    """What the grading server told a toy agent, in order."""
    return [
        json.loads(line) for line in (paths.workspace.code / "answers.jsonl").read_text("utf-8").splitlines()
    ]


def checkpoint(name: str, accuracy: float, *, seed: int = 0, **script: Any) -> list[dict[str, Any]]:
    """Steps that make `output/<name>`, a checkpoint of that accuracy under the scripted engine."""
    folder = f"output/{name}"
    content = {"accuracy": accuracy, "seed": seed, **script}
    return [
        {"do": "copy_base", "to": folder},
        {"do": "write", "to": f"{folder}/scripted.json", "data": content},
    ]
