"""From what a model wrote to a program: fenced code, a whole function, or the continuation of the prompt."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from typing import Literal

Form = Literal["fenced", "function", "continuation"]

_FENCE = re.compile(
    r"```[ \t]*(?:python|py|python3)?[ \t]*\r?\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL | re.IGNORECASE
)
_LONGEST_TEXT = 100_000
_MOST_LINES_DROPPED = 400


@dataclass(frozen=True)
class Program:
    """Code that compiles, and how the answer was read to get it."""

    code: str
    form: Form


def read_program(text: str, *, prefix: str, entry_point: str | None) -> Program | None:
    """The program in `text`; None if no reading of it compiles.

    `prefix` is the start of the function that the prompt showed, empty if it showed none. A whole
    function brings its own head; the prefix before it still gives imports and helpers. Without an
    entry point any code will do.
    """
    text = text[:_LONGEST_TEXT].replace("\r\n", "\n")
    blocks = [match[1] for match in _FENCE.finditer(text)]
    whole = [block for block in blocks if _defines(block, entry_point)]
    if whole and (code := _compiling(_stub(prefix), whole[0])):
        return Program(code, "fenced")
    if not blocks and _defines(text, entry_point) and (code := _compiling(_stub(prefix), _from_code(text))):
        return Program(code, "function")
    if prefix:
        for body in (*blocks[:1], text) if blocks else (text,):
            if body.strip() and (code := _continued(prefix, body)):
                return Program(code, "fenced" if blocks and body is blocks[0] else "continuation")
    return None


def _defines(text: str, entry_point: str | None) -> bool:
    name = r"\w+" if entry_point is None else re.escape(entry_point)
    return re.search(rf"^(?:async\s+)?(?:def|class)\s+{name}\b|^{name}\s*=", text, re.MULTILINE) is not None


def _stub(prefix: str) -> str:
    """The prefix with a body, so that what stands before the function's head is there to be used."""
    return f"{prefix.rstrip()}\n    pass\n\n" if prefix.strip() else ""


def _from_code(text: str) -> str:
    """The text from its first line of code on; models like to say something before."""
    match = re.search(
        r"^(?:from\s+\S+\s+import\b|import\s|def\s|class\s|async\s|@|\w+\s*=)", text, re.MULTILINE
    )
    return text[match.start() :] if match else text


def _continued(prefix: str, body: str) -> str | None:
    """The prefix and what follows it, indented if the answer forgot to."""
    body = body if body[:1] != "\n" else body.lstrip("\n")
    first = re.match(r"[ \t]*", body)
    candidates = [body]
    if first is not None and not first.group():
        # an answer that was stripped lost the indentation of its first line only, or of all
        candidates = [f"    {body}", textwrap.indent(body, "    ")]
    elif first is not None:
        candidates.append(textwrap.indent(textwrap.dedent(body), "    "))
    found = [code for candidate in candidates if (code := _compiling(prefix, candidate, must_add=True))]
    return max(found, key=len) if found else None


def _compiling(prefix: str, text: str, *, must_add: bool = False) -> str | None:
    """`prefix` and the longest beginning of `text` in lines that compiles after it."""
    lines = text.rstrip().split("\n")
    for count in range(len(lines), max(0, len(lines) - _MOST_LINES_DROPPED), -1):
        kept = "\n".join(lines[:count])
        if must_add and not _is_code(kept):
            return None
        code = f"{prefix}{kept}\n"
        if _compiles(code):
            return code
    return None


def _is_code(text: str) -> bool:
    return any(line.strip() and not line.strip().startswith("#") for line in text.split("\n"))


def _compiles(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
