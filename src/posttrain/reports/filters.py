"""Which runs a table is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.infra.durations import parse_duration
from posttrain.reports.comparison import Entry
from posttrain.reports.results import TIME_FORMAT

_DAY_S = 86_400


class Filters(Frozen):
    """Names may have `*` and `?`; several of a kind are alternatives, nothing keeps everything."""

    tasks: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    protocol: str | None = None
    statuses: tuple[str, ...] = ()
    budgets: tuple[float, ...] = ()
    since: datetime | None = None
    """Local time without zone, as rows have it."""
    until: datetime | None = None

    def keeps(self, entry: Entry) -> bool:
        """Whether a run takes part at all. Agents are not asked for: controls must stay to compare with."""
        row = entry.row
        return (
            _named(row.task, self.tasks)
            and _named(row.base_model, self.models)
            and self.protocol in (None, row.protocol)
            and (not self.statuses or row.status in self.statuses)
            and (not self.budgets or entry.facts.timeout_s in self.budgets)
            and self._in_time(row.timestamp)
        )

    def shows(self, agent: str) -> bool:
        """Whether an agent is in the table."""
        return _named(agent, self.agents)

    def _in_time(self, timestamp: str) -> bool:
        if self.since is None and self.until is None:
            return True
        try:
            moment = datetime.strptime(timestamp, TIME_FORMAT)  # noqa: DTZ007 - rows are in local time
        except ValueError:
            return False
        return (self.since is None or moment >= self.since) and (self.until is None or moment <= self.until)


def parse_moment(text: str, *, field: str, now: datetime) -> datetime:
    """`2026-11-29`, `2026-11-29 20:00[:00]`, with `T` and zone too, or how long ago: `90m`, `12h`, `7d`.

    Local time without zone; UsageError names the field.
    """
    text = text.strip()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return now - timedelta(seconds=_ago(text, field))
    return moment.astimezone().replace(tzinfo=None) if moment.tzinfo else moment


def _ago(text: str, field: str) -> float:
    days = text.removesuffix("d")
    if text.endswith("d") and days.isdecimal() and len(days) < 6:
        return int(days) * float(_DAY_S)
    try:
        return parse_duration(text)
    except UsageError:
        raise UsageError(
            f"{field}: {text!r} is no moment; write 2026-11-29, '2026-11-29 20:00', or how long ago: 12h, 7d"
        ) from None


def _named(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
