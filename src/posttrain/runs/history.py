"""What the ledger says has already happened in a run: the only memory that a resume trusts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from posttrain.core.frozen import Frozen
from posttrain.core.grading import Grade, LedgerRow, Split
from posttrain.core.runs import Result, Status
from posttrain.core.scores import Score
from posttrain.reports.metrics import Times


class AgentEnd(Frozen):
    """Data of a `stopped` row: from here on the agent is never started again."""

    exit_code: int | None
    """Of start.sh; negative for a signal. None where the lab had to stop before it ended."""
    at_deadline: bool
    used_s: float


class Measured(Frozen):
    """Data of a `baseline` row."""

    split: Split
    key: str
    """Name of the file in baselines/."""
    cached: bool
    score: Score


class Closed(Frozen):
    """Data of a `closed` row."""

    status: Status
    reason: str | None
    used_s: float
    """Seconds of the budget that were used."""
    self_check: dict[str, Any]
    files: dict[str, str]
    """What each file of the run held at the end, by relative name: see runs/inventory.py."""


@dataclass(frozen=True)
class History:
    """The rows of a ledger, read as the story of a run."""

    rows: Sequence[LedgerRow]

    def _last(self, kind: str) -> dict[str, Any] | None:
        return next((row.data for row in reversed(self.rows) if row.kind == kind), None)

    @property
    def opened(self) -> LedgerRow | None:
        return next((row for row in self.rows if row.kind == "opened"), None)

    @property
    def started(self) -> bool:
        """Whether the agent's budget has begun."""
        return self._last("started") is not None

    @property
    def started_at(self) -> str | None:
        return next((row.time for row in self.rows if row.kind == "started"), None)

    @property
    def times(self) -> Times | None:
        """The agent's budget in Unix seconds; None before it began."""
        started = self._last("started")
        if started is None:
            return None
        return Times(
            start=started["deadline"] - started["timeout_s"],
            end=self._time_of("stopped"),
            last_submit=self._time_of("accepted"),
        )

    def _time_of(self, kind: str) -> float | None:
        found = next((row.time for row in reversed(self.rows) if row.kind == kind), None)
        return None if found is None else datetime.fromisoformat(found).timestamp()

    @property
    def agent_end(self) -> AgentEnd | None:
        data = self._last("stopped")
        return None if data is None else AgentEnd.model_validate(data)

    @property
    def result(self) -> Result | None:
        data = self._last("tested")
        return None if data is None else Result.model_validate(data)

    @property
    def closed(self) -> Closed | None:
        data = self._last("closed")
        return None if data is None else Closed.model_validate(data)

    @property
    def resumed(self) -> int:
        return sum(row.kind == "resumed" for row in self.rows)

    @property
    def grades(self) -> tuple[Grade, ...]:
        found = [Grade.model_validate(row.data) for row in self.rows if row.kind == "graded"]
        return tuple(sorted(found, key=lambda grade: grade.submission_id))

    def baseline(self, split: Split) -> Score | None:
        measured = [Measured.model_validate(row.data) for row in self.rows if row.kind == "baseline"]
        return next((found.score for found in reversed(measured) if found.split == split), None)
