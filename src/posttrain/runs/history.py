"""What the ledger says has already happened in a run: the only memory that a resume trusts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from posttrain.core.errors import LedgerError
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Grade, LedgerRow, Split
from posttrain.core.runs import FormatControl, Result, RunReport, Status
from posttrain.core.scores import Score
from posttrain.grading.book import Accepted, Copied
from posttrain.reports.metrics import Times

SELF_CHECK = "self-check"
AUDIT = "audit"
REPORT = "report"


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
    digest: str = ""
    """Of the whole evaluation, items included."""


class MeasuredControl(Frozen):
    """Data of a `control` row."""

    key: str
    """Name of the file in baselines/."""
    cached: bool
    digest: str
    """Of the whole evaluation, items included."""
    control: FormatControl


class Closed(Frozen):
    """Data of a `closed` row."""

    status: Status
    reason: str | None
    used_s: float
    """Seconds of the budget that were used."""
    driver: str = "unknown"
    """The large model behind the agent, as its environment named it."""
    self_check: dict[str, Any]
    files: dict[str, str]
    """What each file of the run held at the end, by relative name: see runs/inventory.py."""


class KeptReport(Frozen):
    """Data of an event that says what the check of the agent's summary found."""

    report: RunReport
    digest: str
    """Of the whole check, every finding included."""
    version: str = ""
    """The posttrain whose rules it was held against."""


class Word(Frozen):
    """Data of a `verdict` row: what an operator decided about a closed run."""

    accepted: bool
    why: str
    by: str
    """Login name of the operator."""


class Stretch(NamedTuple):
    """One uninterrupted part of the agent's time."""

    begun: float
    """Unix seconds."""
    used_s: float
    """Seconds of the budget that were gone by then."""


_DATA: dict[str, type[Frozen]] = {
    "baseline": Measured,
    "control": MeasuredControl,
    "accepted": Accepted,
    "copied": Copied,
    "graded": Grade,
    "stopped": AgentEnd,
    "tested": Result,
    "closed": Closed,
    "verdict": Word,
}
"""What the rows of a kind hold."""


def _is_time(text: object) -> bool:
    try:
        datetime.fromisoformat(str(text))
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class History:
    """The rows of a ledger, read as the story of a run."""

    rows: Sequence[LedgerRow]

    def check(self) -> None:
        """LedgerError that names the first row whose time or data is not what its kind holds."""
        for row in self.rows:
            kind = _DATA.get(row.kind)
            for time in (row.time, *(row.data.get(name) for name in ("timestamp",) if kind is Grade)):
                if not _is_time(time):
                    raise LedgerError(f"row {row.seq}, {row.kind}: {str(time)[:40]!r} is no time")
            if kind is None:
                continue
            try:
                kind.model_validate(row.data)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise LedgerError(f"row {row.seq}, {row.kind}: {where}: {first['msg']}") from error

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
        """The agent's budget in Unix seconds, as if it had run in one piece; None before it began.

        start + timeout is the deadline of the last start; what happened before an interruption is moved
        by the down time.
        """
        stretches = self._stretches
        if not stretches:
            return None
        start = stretches[-1].begun - stretches[-1].used_s
        last_submit = self.last_submit
        return Times(
            start=start,
            end=self._time_of("stopped"),
            last_submit=None if last_submit is None else start + _used_at(last_submit, stretches),
        )

    @property
    def least_used_s(self) -> float:
        """Seconds of the budget that were gone when the ledger last heard of the running agent."""
        used, begun = 0.0, None
        for row in self.rows:
            if row.kind == "started":
                used, begun = row.data["used_s"], _unix(row.time)
            elif row.kind in ("stopped", "closed", "resumed"):
                begun = None
            elif begun is not None:
                used, begun = used + _unix(row.time) - begun, _unix(row.time)
        return used

    @property
    def last_submit(self) -> float | None:
        """Unix seconds of the last acceptance."""
        return self._time_of("accepted")

    @property
    def timed_grades(self) -> tuple[Grade, ...]:
        """The grades with times on the scale of `times`: seconds from its start are seconds of the budget."""
        times, stretches = self.times, self._stretches
        if times is None or len(stretches) == 1:
            return self.grades
        return tuple(
            grade.model_copy(
                update={"timestamp": _iso(times.start + _used_at(_unix(grade.timestamp), stretches))}
            )
            for grade in self.grades
        )

    @property
    def _stretches(self) -> tuple[Stretch, ...]:
        started = [row.data for row in self.rows if row.kind == "started"]
        return tuple(
            Stretch(data["deadline"] - data["timeout_s"] + data["used_s"], data["used_s"]) for data in started
        )

    def _time_of(self, kind: str) -> float | None:
        found = next((row.time for row in reversed(self.rows) if row.kind == kind), None)
        return None if found is None else _unix(found)

    @property
    def agent_end(self) -> AgentEnd | None:
        data = self._last("stopped")
        return None if data is None else AgentEnd.model_validate(data)

    @property
    def result(self) -> Result | None:
        data = self._last("tested")
        return None if data is None else Result.model_validate(data)

    @property
    def closing(self) -> History | None:
        """The story up to the row that closed the run; None while it goes on or was taken up again."""
        for row in reversed(self.rows):
            if row.kind == "closed":
                return History(self.rows[: row.seq + 1])
            if row.kind == "resumed":
                return None
        return None

    @property
    def closed(self) -> Closed | None:
        """How the run was closed; None while it goes on or was taken up again."""
        closing = self.closing
        return None if closing is None else Closed.model_validate(closing.rows[-1].data)

    @property
    def word(self) -> Word | None:
        """What an operator said last about the run as it was closed last."""
        for row in reversed(self.rows):
            if row.kind == "verdict":
                return Word.model_validate(row.data)
            if row.kind in ("closed", "resumed"):
                return None
        return None

    @property
    def resumed(self) -> int:
        return sum(row.kind == "resumed" for row in self.rows)

    @property
    def versions(self) -> tuple[str, ...]:
        """Of the posttrain that took the run up again, each time."""
        return tuple(row.data["version"] for row in self.rows if row.kind == "resumed")

    @property
    def self_checked(self) -> dict[str, Any] | None:
        """What the self-check of the task found."""
        found = [row.data for row in self.rows if row.kind == "event" and row.data.get("event") == SELF_CHECK]
        return {key: value for key, value in found[-1].items() if key != "event"} if found else None

    @property
    def audited(self) -> bool:
        """Whether what the agent left was held against the hidden items."""
        return self._audit is not None

    @property
    def audit_flags(self) -> tuple[str, ...]:
        """What the audit found: `val_contaminated`, `test_contaminated`."""
        return tuple((self._audit or {}).get("flags", ()))

    @property
    def _audit(self) -> dict[str, Any] | None:
        found = [row.data for row in self.rows if row.kind == "event" and row.data.get("event") == AUDIT]
        return found[-1] if found else None

    @property
    def kept_report(self) -> KeptReport | None:
        """The last check of the summary, with its digest."""
        found = [row.data for row in self.rows if row.kind == "event" and row.data.get("event") == REPORT]
        if not found or "report" not in found[-1]:
            return None
        return KeptReport.model_validate(
            {name: value for name, value in found[-1].items() if name in KeptReport.model_fields}
        )

    @property
    def report(self) -> RunReport | None:
        """What the check of the summary found, for the record."""
        kept = self.kept_report
        return None if kept is None else kept.report

    @property
    def selected(self) -> int | None:
        """The submission that was chosen for the final test."""
        data = self._last("selected")
        return None if data is None else int(data["submission_id"])

    @property
    def grades(self) -> tuple[Grade, ...]:
        found = [Grade.model_validate(row.data) for row in self.rows if row.kind == "graded"]
        return tuple(sorted(found, key=lambda grade: grade.submission_id))

    def baseline(self, split: Split) -> Score | None:
        measured = self.measured(split)
        return None if measured is None else measured.score

    @property
    def control(self) -> MeasuredControl | None:
        """What a prompt alone gives; None where it was not measured."""
        data = self._last("control")
        return None if data is None else MeasuredControl.model_validate(data)

    def measured(self, split: Split) -> Measured | None:
        """The base on a split, as it was first measured in this run."""
        rows = [Measured.model_validate(row.data) for row in self.rows if row.kind == "baseline"]
        return next((found for found in rows if found.split == split), None)


def _used_at(moment: float, stretches: Sequence[Stretch]) -> float:
    """Seconds of the budget that were gone at a moment in Unix seconds."""
    before = [stretch for stretch in stretches if stretch.begun <= moment] or [stretches[0]]
    return before[-1].used_s + moment - before[-1].begun


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
