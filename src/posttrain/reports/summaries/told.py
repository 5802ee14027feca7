"""What the bullets of a section claim, as numbers and words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from posttrain.reports.summaries.hyper import short
from posttrain.reports.summaries.text import Section
from posttrain.reports.summaries.words import FailureType, Field, TrainType

_NUMBER = r"[-+]?(?:\d[\d,]{0,14}(?:\.\d{0,12})?|\.\d{1,12})(?:[eE][-+]?\d{1,3})?%?"
_NOTHING = r"n/?a|none|null|无|未评分|not scored|not graded|-+|—+|–"
_EXIT = re.compile(r"exit[_ ]?code\s*[=:]?\s*(-?\d{1,6})", re.IGNORECASE)
_VALUE = re.compile(rf"(?:({_NUMBER})|({_NOTHING}))(?![\w.])", re.IGNORECASE)
_ITER = re.compile(r"\(?\s*(?:iter(?:ation)?|第)\s*[#=:]?\s*(\d{1,6})", re.IGNORECASE)
_FAILURE = re.compile(r"failure[_ ]?type\s*[=:]?\s*`?([A-Za-z_]+)", re.IGNORECASE)
_SAME = re.compile(
    r"(?:与|同|same as|unchanged (?:from|since))\s*(?:the\s+)?(?:iteration|iter|第)\s*#?(\d{1,6})",
    re.IGNORECASE,
)
_SAME_AFTER = re.compile(r"iteration\s*(\d{1,6})\s*(?:相同|一致)", re.IGNORECASE)
_REMARK = re.compile(r"\s*\([^()]*\)$|(?<=\d)\s+\D*$")
"""What may follow a value: `1e-5 (cosine)`, `20 steps`."""
_COMPACT = re.compile(r"^([A-Za-z_]+?)\s*([-+]?[\d.].*)$")


@dataclass(frozen=True)
class Number:
    """A number as somebody wrote it: as exact as its digits."""

    value: float
    slack: float
    """Half a unit of the last digit that was written."""

    def matches(self, other: float, extra: float = 0.0) -> bool:
        return abs(self.value - other) <= self.slack + extra + 1e-9


@dataclass(frozen=True)
class Scores:
    """The Score bullet. A part that is not there at all is in `missing`; one told as N/A is None."""

    score: Number | None = None
    improvement: Number | None = None
    best: Number | None = None
    best_iteration: int | None = None
    missing: tuple[str, ...] = ()


def number(text: str) -> Number | None:
    """A number in a text that is nothing else; NaN and infinity are none."""
    clean = text.strip().replace(",", "")
    percent = clean.endswith("%")
    clean = clean.rstrip("%")
    try:
        value = float(clean)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    mantissa, _, exponent = clean.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    slack = 0.5 * 10.0 ** (int(exponent or 0) - digits)
    scale = 0.01 if percent else 1.0
    return Number(value * scale, slack * scale)


def status(section: Section) -> tuple[bool | None, int | None]:
    """Whether the round is told as a success, and its exit code; None for what isn't told."""
    text = section.text(Field.STATUS)
    good = "✅" in text or re.search(r"成功|\bsuccess\b", text, re.IGNORECASE) is not None
    bad = "❌" in text or re.search(r"失败|\bfail(?:ed|ure)?\b", text, re.IGNORECASE) is not None
    code = _EXIT.search(text)
    return (None if good == bad else good), (None if code is None else int(code[1]))


def scores(section: Section) -> Scores:
    """The three parts of the Score bullet."""
    text = section.text(Field.SCORE).replace("*", "")
    parts: dict[str, str] = {"score": text.split("|")[0]}
    for part in text.split("|")[1:]:
        name, _, value = part.partition(":")
        parts[name.strip().lower() or part.strip().lower()] = value or part
    parts["score"] = re.sub(r"^\s*score\s*:?", "", parts["score"], flags=re.IGNORECASE)
    named: dict[str, str | None] = {key: _part(parts, key) for key in ("score", "improvement", "best")}
    found: dict[str, Number | None] = {}
    missing: list[str] = []
    for key, part_text in named.items():
        match = None if part_text is None else _VALUE.match(part_text.strip())
        if match is None:
            missing.append(key)
        else:
            found[key] = number(match[1]) if match[1] else None
    best = named["best"] or ""
    where = _ITER.search(best)
    if found.get("best") is not None and where is None:
        missing.append("best (iter N)")
    return Scores(
        score=found.get("score"),
        improvement=found.get("improvement"),
        best=found.get("best"),
        best_iteration=int(where[1]) if where else None,
        missing=tuple(missing),
    )


def _part(parts: dict[str, str], key: str) -> str | None:
    for name, value in parts.items():
        if name.startswith(key):
            return value if name == key else re.sub(rf"^{key}\s*", "", value, flags=re.IGNORECASE)
    return None


def nothing(text: str) -> bool:
    """Whether a bullet says that there is nothing to say."""
    plain = text.strip("*_` .。")
    return not plain or re.fullmatch(_NOTHING, plain, re.IGNORECASE) is not None


def train_type(section: Section) -> TrainType | str:
    """The train type, or what stands in its place."""
    text = section.text(Field.TRAIN_TYPE).strip("*`. 。")
    word = re.match(r"[A-Za-z_]+", text)
    for kind in TrainType:
        if text.lower() == kind.value.lower() or (word and word[0].lower() == kind.value.lower()):
            return kind
    return text[:40]


def config(section: Section) -> dict[str, str]:
    """The hyper-parameters by their short names; empty for `unknown`."""
    text = section.text(Field.CONFIG).replace("`", "").replace("*", "").rstrip(". 。")
    found: dict[str, str] = {}
    for part in re.split(r"[,;、\n|]+", text):
        name, sign, value = part.partition("=")
        if not sign:
            name, sign, value = part.partition(":")
        if not sign:
            compact = _COMPACT.match(part.strip())
            name, value = (compact[1], compact[2]) if compact else ("", "")
        name, value = name.strip().lstrip("-*•+ "), _REMARK.sub("", value.strip())
        if name and value and re.fullmatch(r"[\w.\-/ ]+", name):
            found[short(name)] = value
    return found


def failure_types(text: str) -> list[str]:
    """Failure types that a text names: after `failure_type=`, or by one of the words themselves."""
    named = [match[1].lower() for match in _FAILURE.finditer(text)]
    words = [kind.value for kind in FailureType if kind is not FailureType.UNKNOWN and kind.value in text]
    return list(dict.fromkeys([*named, *words]))


def own_failures(section: Section) -> list[str]:
    """Failure types that a section claims for itself; words of a success are about earlier rounds."""
    text = section.text(Field.STATUS, Field.PROGRESS)
    good, _ = status(section)
    return [match[1].lower() for match in _FAILURE.finditer(text)] if good else failure_types(text)


def same_as(text: str) -> int | None:
    """The iteration that code is said to be the same as."""
    found = _SAME.search(text) or _SAME_AFTER.search(text)
    return None if found is None else int(found[1])
