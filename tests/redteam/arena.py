"""Runs of hostile agents: real ones, with the scripted engine, in one lab home whose caches are shared."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from posttrain.core.paths import RunPaths
from posttrain.runs.verification import verify_run
from run_bench import Bench

HERE = Path(__file__).parent
KINDS = sorted(path.parent.name for path in HERE.glob("*/attack.py"))


@dataclass(frozen=True)
class Attack:
    """What one attack left."""

    bench: Bench
    paths: RunPaths
    code: int
    shown: str

    @cached_property
    def found(self) -> dict[str, Any]:
        """What the agent noted, by name."""
        return json.loads((self.paths.workspace.code / "found.json").read_bytes())

    @cached_property
    def record(self) -> dict[str, Any]:
        return json.loads(self.paths.record.read_bytes())

    @property
    def result(self) -> dict[str, Any]:
        return self.record["result"]

    @property
    def grades(self) -> list[dict[str, Any]]:
        """All verdicts, from the ledger."""
        return [row["data"] for row in self.rows if row["kind"] == "graded"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.paths.ledger.read_text("utf-8").splitlines()]

    @property
    def done(self) -> set[str]:
        """Attempts that were not refused."""
        return {name for name, came in self.found.items() if not str(came).startswith("refused")}

    @property
    def faults(self) -> list[str]:
        """What `verify` finds."""
        return [fault for check in verify_run(self.paths, self.bench.lab) for fault in check.faults]

    @property
    def survivors(self) -> list[int]:
        """Processes that still have the run's id in their environment."""
        mark = f"RUN_ID={self.paths.run_id}".encode()
        return [
            int(folder.name)
            for folder in Path("/proc").iterdir()
            if folder.name.isdigit() and mark in _environment(folder)
        ]


def _environment(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True)
class Arena:
    """Where attacks happen."""

    bench: Bench

    def __call__(self, attack: str, *options: str) -> Attack:
        """Run `kind:case` at level bwrap; a later option of the same name wins."""
        before = {paths.root for paths in self.bench.runs}
        made = self.bench.run(attack, "--sandbox", "bwrap", "--timeout", "150", *options)
        assert made.returncode in (0, 1), made.stderr
        (paths,) = [paths for paths in self.bench.runs if paths.root not in before]
        return Attack(self.bench, paths, made.returncode, made.stdout + made.stderr)


def enlist(bench: Bench) -> Arena:
    """Copies of all hostile agents in the lab's own folder, each with the kit beside it."""
    for kind in KINDS:
        shutil.copytree(HERE / kind, bench.agents / kind, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(HERE / "kit.py", bench.agents / kind)
    return Arena(bench)
