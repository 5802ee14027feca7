"""Which lines of a training script a section quotes: the telling ones, and those around them."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from posttrain.core.errors import UsageError
from posttrain.reports.summaries.constants import called
from posttrain.reports.summaries.script import Script, plain_lines
from posttrain.reports.summaries.text import Document
from posttrain.reports.summaries.words import Field

_RANGE = re.compile(r"^L?(\d{1,6})(?:\s*[-–:]\s*L?(\d{1,6}))?$")
_KEY_LINES, _LEAST, _MOST = 5, 15, 40
_SAME = "same"


@dataclass(frozen=True)
class Context:
    text: str = ""
    where: str = ""
    same_as: int | None = None


def quote(
    key_code: str | None, context: str | None, document: Document, script: Script | None, *, idle: bool
) -> tuple[str, Context]:
    """Key code and snippet: lines that are named, texts that are given, or what tells most.

    `idle`: the round trained nothing, so that nothing has to be quoted.
    """
    if script is None or (idle and key_code is None and context is None):
        return _text_of(key_code), Context(text=_text_of(context))
    lines = script.text.replace("\r\n", "\n").split("\n")
    span = _given_range(key_code, lines, "--key-code") or _key_span(script.text, lines)
    key = _text_of(key_code) or "\n".join(_dedented(lines[span[0] - 1 : span[1]]))
    name = PurePosixPath(script.name).name
    if _text_of(context):
        return key, Context(text=_text_of(context), where=name)
    chosen = _given_range(context, lines, "--context")
    earlier = None if chosen else _unchanged_since(document, script)
    if context is not None and context.strip() == _SAME and earlier is None:
        raise UsageError("--context same: no earlier iteration quotes code that the script still has")
    first, last = chosen or _context_span(script.text, lines, span)
    where = f"{name} L{first}-L{last}{_function_at(script.text, span[0])}"
    if earlier is not None:
        return key, Context(where=where, same_as=earlier)
    return key, Context(text="\n".join(lines[first - 1 : last]), where=where)


def _text_of(given: str | None) -> str:
    """What was given as a text, not as numbers of lines."""
    is_text = given is not None and given.strip() != _SAME and not _RANGE.match(given.strip())
    return given if is_text and given is not None else ""


def _given_range(text: str | None, lines: Sequence[str], option: str) -> tuple[int, int] | None:
    match = _RANGE.match(text.strip()) if text else None
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last <= len(lines):
        raise UsageError(f"{option}: lines {first}-{last}, but the script has {len(lines)}")
    return first, last


def _dedented(lines: Sequence[str]) -> list[str]:
    widths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    return [line[min(widths, default=0) :] for line in lines]


def _key_span(text: str, lines: Sequence[str]) -> tuple[int, int]:
    """Up to five lines that tell most: settings with a learning rate, a trainer, the loss going back."""
    best: tuple[int, int, int] = (0, 1, len(lines))
    for node in _nodes(text):
        if isinstance(node, ast.Call):
            rated = (*_telling(node), node.end_lineno or node.lineno)
            best = max(best, rated, key=lambda found: found[0])
    first = best[1]
    last = min(first + _KEY_LINES - 1, max(best[2], first + 2), len(lines))
    while last - first + 1 < 3 and first > 1:
        first -= 1
    filled = [number for number in range(first, last + 1) if lines[number - 1].strip()]
    while len(filled) < 3 and (first > 1 or last < len(lines)):
        first, last = (first - 1, last) if first > 1 else (first, last + 1)
        filled = [number for number in range(first, last + 1) if lines[number - 1].strip()]
    return first, last


def _telling(node: ast.Call) -> tuple[int, int]:
    """How much a call tells of the training, and the line to begin with."""
    rates = [k.value.lineno for k in node.keywords if k.arg in ("learning_rate", "lr")]
    if rates:
        return 4, max(node.lineno, rates[0] - 2)
    name = called(node)
    return 3 if name.endswith("Trainer") else 2 if name == "backward" else 0, node.lineno


def _nodes(text: str) -> list[ast.AST]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in the agent's strings
            return list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _context_span(text: str, lines: Sequence[str], key: tuple[int, int]) -> tuple[int, int]:
    """The function around the key code, or as many lines, between 15 and 40."""
    function = _enclosing(text, key[0])
    first, last = (function.lineno, function.end_lineno or function.lineno) if function else key
    if last - first + 1 > _MOST:
        first = max(first, key[0] - _MOST // 2)
        last = min(last, first + _MOST - 1)
    while _filled(lines, first, last) < _LEAST and (first > 1 or last < len(lines)):
        first, last = (first - 1, last) if first > 1 else (first, last + 1)
    while last > first and not lines[last - 1].strip():
        last -= 1
    while first < last and not lines[first - 1].strip():
        first += 1
    return first, last


def _filled(lines: Sequence[str], first: int, last: int) -> int:
    """How many lines are left when blank ones at both ends are taken off."""
    return len("\n".join(lines[first - 1 : last]).strip("\n ").split("\n"))


def _enclosing(text: str, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    found = None
    for node in _nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = node.lineno <= line <= (node.end_lineno or node.lineno)
            if inside and (found is None or node.lineno > found.lineno):
                found = node
    return found


def _function_at(text: str, line: int) -> str:
    function = _enclosing(text, line)
    return f", {function.name}()" if function else ""


def _unchanged_since(document: Document, script: Script) -> int | None:
    """The latest iteration whose quoted snippet the script still has, line by line."""
    known = "\n".join(plain_lines(script.text))
    for section in reversed(document.sections):
        bullet = section.bullet(Field.CONTEXT)
        if bullet is None or section.number is None:
            continue
        if bullet.blocks:
            quoted = "\n".join(plain_lines("\n".join(bullet.blocks[0].lines)))
            return section.number if quoted and quoted in known else None
    return None
