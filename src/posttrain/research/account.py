"""Where the time of a run goes: which seconds are the loop's own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import Field

from posttrain.core.frozen import Frozen
from posttrain.llm.messages import Usage

ASKING = ("propose", "build", "review")
TRAINING = ("dry_run", "train")
GRADING = ("grade",)


class Account(Frozen):
    """Seconds of this process by purpose, and what the driver model cost in all processes of the run.

    Answers of iterations that no journal holds were paid for as well.
    """

    iterations: int
    wall_s: float
    llm_s: float
    training_s: float
    """Dry runs and process starts included."""
    grading_s: float
    own_s: float
    """Everything else: the loop's overhead."""
    own_share: float = Field(ge=0.0)
    usage: Usage
    ended: str
    """Why the loop ended."""


class Stopwatch:
    """Sums the seconds of named steps of this process."""

    def __init__(self, *, began: float | None = None) -> None:
        """`began` on the monotonic clock; now unless given."""
        self._began = time.monotonic() if began is None else began
        self._sums: dict[str, float] = {}

    def add(self, step: str, seconds: float) -> None:
        self._sums[step] = self._sums.get(step, 0.0) + seconds

    def account(self, *, iterations: int, usage: Usage, ended: str) -> Account:
        """The sums so far."""
        wall = time.monotonic() - self._began

        def total(steps: Sequence[str]) -> float:
            return sum(self._sums.get(step, 0.0) for step in steps)

        own = max(0.0, wall - total((*ASKING, *TRAINING, *GRADING)))
        return Account(
            iterations=iterations,
            wall_s=round(wall, 3),
            llm_s=round(total(ASKING), 3),
            training_s=round(total(TRAINING), 3),
            grading_s=round(total(GRADING), 3),
            own_s=round(own, 3),
            own_share=round(own / wall, 5) if wall > 0 else 0.0,
            usage=usage,
            ended=ended,
        )
