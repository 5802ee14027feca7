"""Where the loop keeps what. Everything lies in the workspace and outlives the process."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.paths import Workspace

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Places:
    """The loop's folders in a workspace.

    research/
    ├── journal.jsonl  journal.torn   finished iterations, one line each
    ├── transcript.jsonl              what was said to the driver model and by it
    ├── loop.log  summary.json        events; the account of time and money
    └── n003/                         results of the steps of one iteration
    code/n003/                        what the driver model wrote, with its logs and curves
    output/n003/                      checkpoints of this iteration
    """

    workspace: Workspace

    @property
    def root(self) -> Path:
        return self.workspace.root / "research"

    @property
    def journal(self) -> Path:
        return self.root / JOURNAL

    @property
    def torn(self) -> Path:
        return self.root / "journal.torn"

    @property
    def transcript(self) -> Path:
        return self.root / "transcript.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    def iteration(self, number: int) -> IterationPlaces:
        name = f"n{number:03}"
        return IterationPlaces(
            number=number,
            steps=self.root / name,
            code=self.workspace.code / name,
            output=self.workspace.output / name,
        )


@dataclass(frozen=True)
class IterationPlaces:
    """The folders of one iteration."""

    number: int
    steps: Path
    code: Path
    output: Path

    @property
    def script(self) -> Path:
        return self.code / "train.py"

    def log(self, run: str) -> Path:
        """`run` is dry_run or train."""
        return self.code / f"{run}.log"

    def curve(self, run: str) -> Path:
        return self.code / f"{run}.curve.jsonl"


def remove(path: Path) -> None:
    """Whatever a script made of a folder: a link, a file, or the folder. What cannot go stays."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
