"""Text of others for a page: nothing in it acts, nothing in it hides, nothing in it tells too much."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

_HIDING = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
"""Control and format characters (bidirectional ones too), surrogates, unassigned ones, odd line ends."""
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that are drawn as nothing; not U+FE0F, which colours the sign before it."""
_KEPT = frozenset({"\n", "\t"})
_SERVER = re.compile(r"(/run/)[A-Za-z0-9_-]{16,}")
_KEY = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|xox[abprs]-[A-Za-z0-9-]{16,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,})"
    r"|(?i:\bbearer\s+)[A-Za-z0-9._~+/-]{16,}=*"
)
"""Forms of well-known keys."""
_FOLDERS = re.compile(r"(?<![\w./:~$…-])/(?:[^\s/\"'<>|,;:()\[\]{}]+/)+")
"""The folders of an absolute path, which an URL or a fraction is not."""
SHOWN = "…"


@dataclass(frozen=True)
class Blinds:
    """What a page that is given away must not tell."""

    paths: Mapping[str, str] = field(default_factory=dict)
    """Folders of this machine, and what stands for each; of others only the last part is left."""
    secrets: tuple[str, ...] = ()
    """Values that appear nowhere."""
    hidden: tuple[str, ...] = ()
    """Questions and answers of hidden items, long enough to be no accident."""

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, SHOWN)
        text = self._without_items(text)  # before folders: an item may speak of one
        for folder in sorted(self.paths, key=len, reverse=True):
            text = text.replace(folder, self.paths[folder])
        text = _FOLDERS.sub(f"{SHOWN}/", _SERVER.sub(rf"\1{SHOWN}", text))
        return _KEY.sub(SHOWN, text)

    @cached_property
    def _shortest(self) -> int:
        return min(map(len, self.hidden), default=0)

    def _without_items(self, text: str) -> str:
        if len(text) < self._shortest:
            return text
        for item in self.hidden:
            if len(item) <= len(text) and item in text:
                text = text.replace(item, "[a hidden item]")
        return text


def decoded(raw: bytes) -> str:
    """Bytes as text; what is no UTF-8 stands there as \\xff, line ends of all kinds are one."""
    text = raw.decode("utf-8", "backslashreplace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def visible(text: str) -> str:
    """The text with every character that acts or hides written out: <U+202E>."""
    if text.isprintable() and not _BLANK.search(text):
        return text
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char in _KEPT or not (unicodedata.category(char) in _HIDING or _BLANK.match(char)):
        return char
    return f"<U+{ord(char):04X}>"
