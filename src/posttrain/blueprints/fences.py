"""Code fences: where one is around the blueprint itself, as language models like to write it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from posttrain.blueprints.labels import find_label

FENCE = re.compile(r"\s*(?:[-*+>]\s+)*(`{3,}|~{3,})")
_ANY_LANGUAGE = re.compile(r"\s*(`{3,}|~{3,})\s*\w*\s*")
_MARKDOWN = re.compile(r"\s*(`{3,}|~{3,})\s*(?:markdown|md)\s*")
_LABELS = 3
"""A fence with so many labels inside holds the blueprint, not a command."""


def without_outer_fence(lines: Sequence[str]) -> list[str]:
    """The same lines with that fence blanked, so that line numbers stay."""
    blanked = list(lines)
    for number in _whole(lines) or _markdown(lines) or _labelled(lines) or ():
        blanked[number] = ""
    return blanked


def _whole(lines: Sequence[str]) -> tuple[int, int] | None:
    """A fence from the first line to the last."""
    filled = [number for number, line in enumerate(lines) if line.strip()]
    mark = _ANY_LANGUAGE.fullmatch(lines[filled[0]]) if len(filled) > 1 else None
    return (filled[0], filled[-1]) if mark and lines[filled[-1]].strip() == mark[1] else None


def _markdown(lines: Sequence[str]) -> tuple[int, int] | None:
    """A Markdown text inside a text, to the last fence that can close it: it may have fences of its own."""
    for number, line in enumerate(lines):
        mark = _MARKDOWN.fullmatch(line)
        ends = [other for other in range(number + 1, len(lines)) if mark and lines[other].strip() == mark[1]]
        if ends:
            return number, ends[-1]
    return None


def _labelled(lines: Sequence[str]) -> tuple[int, int] | None:
    """A block (of YAML, say) with the labels in it."""
    start: int | None = None
    for number, line in enumerate(lines):
        mark = FENCE.match(line)
        if start is None and mark:
            start = number
        elif start is not None and mark and not line.strip().strip("`~"):
            found = [label for inner in lines[start:number] if (label := find_label(inner)) and label.by_id]
            if len(found) >= _LABELS:
                return start, number
            start = None
    return None
