"""What a run tells its agent, as training scripts read it: once, from the variables of their process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from posttrain.infra.files import read_jsonl
from posttrain.training.examples import Row
from posttrain.training.server import GradingServer

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Assignment:
    """Folders, the server and the settings of one agent process."""

    workspace: Path
    model: Path
    data: Path
    output: Path
    server: GradingServer
    seed: int
    variables: Mapping[str, str]

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Assignment:
        """From the environment of an agent; ValueError names a variable that is missing."""
        names = ("WORKSPACE", "MODEL_PATH", "DATA_PATH", "OUTPUT_DIR", "GRADING_SERVER_URL")
        missing = [name for name in names if not variables.get(name)]
        if missing:
            raise ValueError(f"{', '.join(missing)} not set: this script runs inside a posttrain run")
        return cls(
            workspace=Path(variables["WORKSPACE"]),
            model=Path(variables["MODEL_PATH"]),
            data=Path(variables["DATA_PATH"]),
            output=Path(variables["OUTPUT_DIR"]),
            server=GradingServer(variables["GRADING_SERVER_URL"]),
            seed=int(variables.get("SEED") or 0),
            variables=variables,
        )

    def text(self, name: str, default: str) -> str:
        """A setting; an empty one counts as not set."""
        return self.variables.get(name) or default

    def number(self, name: str, default: float) -> float:
        """A setting that is a number; ValueError names it otherwise."""
        return self._parsed(name, default, float)

    def count(self, name: str, default: int) -> int:
        """A setting that is a whole number."""
        return self._parsed(name, default, int)

    def _parsed(self, name: str, default: _Number, kind: Callable[[str], _Number]) -> _Number:
        text = self.variables.get(name)
        if not text:
            return default
        try:
            return kind(text)
        except ValueError as error:
            raise ValueError(f"{name}: {text!r} is not a number") from error

    def rows(self) -> list[Row]:
        """The visible rows."""
        return list(read_jsonl(self.data / "train.jsonl"))
