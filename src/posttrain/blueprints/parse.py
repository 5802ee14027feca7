"""A blueprint's Markdown as labelled parts with line numbers; judges nothing but the form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posttrain.blueprints.blueprint import Label, Problem
from posttrain.blueprints.fences import FENCE, without_outer_fence
from posttrain.blueprints.labels import Found, find_label, is_heading
from posttrain.blueprints.values import command_value, line_value, text_value

Line = tuple[int, str]
_RULE = re.compile(r"\s*(?:-{3,}|={3,}|\*{3,}|_{3,})\s*")
_TABLE_RULE = re.compile(r"\s*\|?\s*:?-{2,}[-:|\s]*")
_FREE_TEXT = {Label.PURPOSE, Label.NOTES}
_COMMANDS = {Label.COMMAND, Label.SERVICE}


@dataclass(frozen=True)
class Part:
    """The text of one part, cleaned of Markdown."""

    line: int
    """Of the value, or of the label where the value is empty."""
    value: str


@dataclass(frozen=True)
class Parsed:
    """The parts found and what is wrong with the form."""

    parts: dict[Label, Part]
    problems: tuple[Problem, ...]
    lines: int

    def line_after(self, label: Label) -> int:
        """Where a missing part would belong: the line of the part before it, in the format's order."""
        before = [part.line for other, part in self.parts.items() if _rank(other) < _rank(label)]
        return max(before, default=1)


@dataclass
class _Open:
    """A part while its lines are collected."""

    found: Found
    line: int
    lines: list[Line]


def parse(text: str) -> Parsed:
    """The parts of a blueprint. Never raises; a part that is given twice is a problem, the first counts."""
    lines = _prepared(text)
    opened, problems = _split(lines)
    parts: dict[Label, Part] = {}
    spare: list[Line] = []
    for part in opened:
        label = part.found.label
        if label in parts:
            if label is not Label.NOTES:
                problems.append(_twice(label, part.line, parts[label].line))
            continue
        parts[label], rest = _read(part)
        spare += rest
    _append_to_notes(parts, spare)
    return Parsed(parts, tuple(problems), max(1, len(lines)))


def _prepared(text: str) -> list[Line]:
    """Numbered lines, without byte-order mark, comments and an outer fence around the whole."""
    text = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL)
    lines = text.split("\n")
    return list(enumerate(without_outer_fence(lines), start=1))


def _split(lines: Sequence[Line]) -> tuple[list[_Open], list[Problem]]:
    """Cut the lines at labels; titles count only for parts that no id names."""
    problems: list[Problem] = []
    marks = list(_marks(lines, problems))
    named = {found.label for _, found in marks if found.by_id}
    at = {number: found for number, found in marks if found.by_id or found.label not in named}
    opened: list[_Open] = []
    current: _Open | None = None
    for number, line in lines:
        found = at.get(number)
        if found is not None:
            current = _Open(found, number, [(number, found.rest)] if found.rest else [])
            opened.append(current)
        elif current is not None:
            current.lines.append((number, line))
    return opened, problems


def _marks(lines: Sequence[Line], problems: list[Problem]) -> Iterator[tuple[int, Found]]:
    """Labelled lines outside code fences."""
    fence, opened_at = "", 0
    for number, line in lines:
        mark = FENCE.match(line)
        if fence:
            found = find_label(line)
            if mark and mark[1].startswith(fence) and not line.strip().strip("`~"):
                fence = ""
            elif found and found.by_id:
                problems.append(_unclosed(opened_at))
                fence = ""
                yield number, found
        elif found := find_label(line):
            yield number, found
            mark = FENCE.match(found.rest)
            fence, opened_at = (mark[1], number) if mark else ("", 0)
        elif mark and not re.search(r"\S`{3,}", line):
            fence, opened_at = mark[1], number
    if fence:
        problems.append(_unclosed(opened_at))


def _unclosed(line: int) -> Problem:
    return Problem(
        line=line, label=None, level="error", message="the code fence that opens here is not closed"
    )


def _twice(label: Label, line: int, first: int) -> Problem:
    return Problem(line=line, label=label, level="error", message=f"given twice, first in line {first}")


def _read(part: _Open) -> tuple[Part, list[Line]]:
    """The value of a part, and the lines behind it that are not part of it."""
    label = part.found.label
    own, rest = (part.lines, []) if label is Label.NOTES else _until_heading(part.lines)
    own = [
        (number, line)
        for number, line in own
        if not _RULE.fullmatch(line) and not _TABLE_RULE.fullmatch(line)
    ]
    if label in _FREE_TEXT:
        value, line = text_value(own)
    elif label in _COMMANDS:
        value, line = command_value(own)
    else:
        value, line = line_value(own)
    return Part(line or part.line, value), rest


def _until_heading(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """A heading that is no label ends a part; what follows it is for the notes."""
    inside_fence = False
    for index, (_, line) in enumerate(lines):
        if FENCE.match(line):
            inside_fence = not inside_fence
        elif not inside_fence and is_heading(line):
            return list(lines[:index]), list(lines[index:])
    return list(lines), []


def _append_to_notes(parts: dict[Label, Part], spare: Sequence[Line]) -> None:
    value, line = text_value(spare)
    if not value:
        return
    notes = parts.get(Label.NOTES)
    if notes is None or not notes.value:
        parts[Label.NOTES] = Part(notes.line if notes else line, value)
    else:
        parts[Label.NOTES] = Part(notes.line, f"{notes.value}\n\n{value}")


def _rank(label: Label) -> int:
    return list(Label).index(label)
