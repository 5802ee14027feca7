"""When iterations happened, and which submissions fall into each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from posttrain.reports.summaries.facts import MINUTE, Facts, Handed
from posttrain.reports.summaries.text import Document, Section

_NAMED = re.compile(r"\b(?:iteration|iter|round)[\s_#:=-]*(\d{1,6})\b|第\s*(\d{1,6})\s*[轮次]", re.IGNORECASE)
_SLACK = 2.0
"""Seconds that whole seconds and two clocks may differ."""


@dataclass(frozen=True)
class Window:
    """The seconds in which an iteration happened, as well as its heading tells: times are whole minutes."""

    section: Section
    begin: float
    end: float
    """The latest moment it may have ended."""
    told: float
    """The heading's time."""
    candidates: tuple[Handed, ...]
    """Submissions that may be its own."""
    certain: tuple[Handed, ...]
    """Those that are, whichever second of its minute the heading means, graded before it was written."""
    outside: bool = False
    """The heading puts it before or after the agent's time, so that any submission may be its own."""


@dataclass(frozen=True)
class Timeline:
    """The iterations of a document in time."""

    windows: dict[int, Window]
    """By the line of the heading."""
    at_begin: bool
    """Headings tell when a round began; else when it ended, as `report append` writes them."""

    def of(self, section: Section) -> Window | None:
        return self.windows.get(section.line)


def timeline(document: Document, facts: Facts) -> Timeline:
    """Read the headings' times in the way that fits the facts best."""
    readings = [
        (_misfits(moments, facts, at_begin=at_begin), order, moments, at_begin)
        for order, (moments, at_begin) in enumerate(
            (moments, at_begin) for at_begin in (False, True) for moments in _zones(document)
        )
    ]
    _, _, moments, at_begin = min(readings, key=lambda reading: reading[:2])
    windows = {
        section.line: _window(section, moment, facts, at_begin=at_begin) for section, moment in moments
    }
    return Timeline(windows, at_begin)


def _zones(document: Document) -> list[list[tuple[Section, float]]]:
    """The sections' times in Unix seconds, read as local time and as UTC."""
    timed = [
        (section, section.time)
        for section in document.sections
        if section.time is not None and section.duration_s is not None
    ]
    return [
        [(section, _local(time)) for section, time in timed],
        [(section, time.replace(tzinfo=UTC).timestamp()) for section, time in timed],
    ]


def _local(time: datetime) -> float:
    try:
        return time.timestamp()
    except (OverflowError, OSError, ValueError):  # the year 1 in a zone east of Greenwich
        return time.replace(tzinfo=UTC).timestamp()


def span(section: Section, moment: float, *, at_begin: bool) -> tuple[float, float]:
    """The earliest begin and the latest end."""
    duration = section.duration_s or 0.0
    if at_begin:
        return moment - _SLACK, moment + MINUTE + duration + _SLACK
    return moment - duration - _SLACK, moment + MINUTE + _SLACK


def _misfits(moments: Sequence[tuple[Section, float]], facts: Facts, *, at_begin: bool) -> int:
    """How many iterations cannot be where their headings put them."""
    wrong, reached = 0, None
    for section, moment in moments:
        duration = section.duration_s or 0.0
        begin, end = (moment, moment + duration) if at_begin else (moment - duration, moment)
        early = facts.start is not None and begin + MINUTE + _SLACK < facts.start
        late = facts.now is not None and end > facts.now + _SLACK
        overlap = reached is not None and begin + MINUTE + _SLACK < reached
        wrong += early + late + overlap
        reached = end if reached is None else max(reached, end)
    return wrong


def _window(section: Section, moment: float, facts: Facts, *, at_begin: bool) -> Window:
    begin, end = span(section, moment, at_begin=at_begin)
    inside = [entry for entry in facts.handed if begin <= entry.at <= end]
    named = [entry for entry in facts.handed if section.number in _named(entry)]
    own = named or [entry for entry in inside if not _named(entry)]
    if _is_outside(moment, section.duration_s or 0.0, facts, at_begin=at_begin):
        return Window(section, begin, end, moment, tuple(named or facts.handed), (), outside=True)
    duration = section.duration_s or 0.0
    first, last = (moment + MINUTE, moment + duration) if at_begin else (moment - duration + MINUTE, moment)
    certain = [
        entry for entry in own if entry.at + entry.waited <= last and (entry in named or first <= entry.at)
    ]
    return Window(section, begin, end, moment, tuple(own), tuple(certain))


def _is_outside(moment: float, duration: float, facts: Facts, *, at_begin: bool) -> bool:
    ended = moment + duration if at_begin else moment
    late = facts.now is not None and ended > facts.now + _SLACK
    return late or (facts.start is not None and ended + MINUTE < facts.start)


def _named(entry: Handed) -> set[int]:
    """Iterations that the note of a submission names."""
    found = _NAMED.finditer(entry.note or "")
    return {int(match[1] or match[2]) for match in found}


def neighbours(document: Document, line: Timeline) -> Iterator[tuple[Window, Window]]:
    """Every iteration with the one before it, both with a time."""
    windows = [line.of(section) for section in document.sections]
    timed = [window for window in windows if window is not None]
    yield from pairwise(timed)
