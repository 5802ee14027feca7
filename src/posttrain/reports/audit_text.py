"""Texts as the audit compares them: words without case and marks, escapes of data files undone.

`exact` keeps every word and number. `alike` makes numbers, names and identifiers alike, so that a row
whose people and figures were exchanged is still the same row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal

Form = Literal["exact", "alike"]

_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+(?:_\w+|\d\w*)*|_\w+")
_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|[nrt])?")
_IDENTIFIER = re.compile(r"_|\d|[a-z][A-Z]")
_COMMON = frozenset(
    "i the a an he she it they we you his her their its my our if in on at of to for from with and or not but"  # noqa: SIM905
    " how what when who where which why there this that each every one two three all some then after before"
    " true false none return def class".split()
)
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")


@dataclass(frozen=True)
class Words:
    """The words of a text in one form."""

    text: str
    """Without escapes."""
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.words)

    def span(self, position: int, length: int) -> str:
        """What the text says from a word on."""
        found = list(islice(_WORD.finditer(self.text), position, position + length))
        return self.text[found[0].start() : found[-1].end()]


def normal_words(text: str, form: Form) -> Words:
    """The words of a text; what a data file escapes is read as what it stands for.

    A backslash goes, with the letter of a line break behind it: so rows compare equal raw and in JSON.
    """
    plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else " ", text)
    if form == "exact":
        return Words(plain, [word.casefold() for word in _WORD.findall(plain)])
    return Words(plain, [_alike(word) for word in _WORD.findall(plain)])


@lru_cache(maxsize=1 << 16)
def _alike(word: str) -> str:
    if word[0].isdigit():
        return "0"
    lower = word.casefold()
    if _IDENTIFIER.search(word) or (word[0].isupper() and lower not in _COMMON):
        return "x"
    return lower


def units(text: str) -> Iterator[str]:
    """The rows that a text may consist of: its lines and what stands in quotation marks, plainly spaced."""
    for line in text.splitlines():
        yield plainly(line)
        for match in _QUOTED.finditer(line):
            yield plainly(match[1])


def plainly(text: str) -> str:
    """A text without escapes, with single spaces."""
    return " ".join(_ESCAPE.sub(" ", text).split())
