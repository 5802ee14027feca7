"""`exp_max_time` as people write it, in English or Chinese."""

from __future__ import annotations

import re
import unicodedata

_UNITS: dict[float, str] = {
    86400.0: r"days?|d|天|日",
    3600.0: r"hours?|hrs?|h|个?小时|个?钟头",
    60.0: r"minutes?|mins?|min|m|分钟|分",
    1.0: r"seconds?|secs?|sec|s|秒钟|秒",
}
_UNIT = "|".join(f"(?P<u{int(size)}>{words})" for size, words in _UNITS.items())
_ONE = re.compile(rf"(?P<number>\d+(?:\.\d+)?|\.\d+)\s*[-(]?\s*(?:{_UNIT})(?![a-z])", re.IGNORECASE)
_NUMERALS = {
    "一": 1,
    "二": 2,
    "两": 2,
    "三": 3,
    "四": 4,
    "五": 5,
    "六": 6,
    "七": 7,
    "八": 8,
    "九": 9,
    "十": 10,
}
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_LONGEST_S = 366 * 86400.0


class LimitError(ValueError):
    """The text is no time limit; says why."""


def parse_limit(text: str) -> tuple[float, bool]:
    """(seconds, whether a unit was given) of one limit, possibly said twice; a bare number means hours."""
    plain = _plain(text)
    if "$" in text:
        raise LimitError(f"the placeholder in {text!r} is not filled in")
    if re.search(r"(?:^|\s)[-−]\s*\d", plain):
        raise LimitError(f"{text!r} is negative")
    found = {_sum(group) for group in _groups(plain)}
    if len(found) > 1:
        raise LimitError(f"{text!r} names different times")
    if found:
        return _checked(found.pop(), text), True
    numbers = re.findall(r"\d+(?:\.\d+)?", plain)
    if len(numbers) == 1 and not re.search(r"\d\s*[a-z%:/]", plain, re.IGNORECASE):
        return _checked(float(numbers[0]) * 3600, text), False
    raise LimitError(f"{text!r} is no time limit; write 8h, 90m, 8 小时 or 2 hours")


def _plain(text: str) -> str:
    """Full-width digits and Chinese numerals as ASCII ones."""
    text = unicodedata.normalize("NFKC", text)
    text = re.sub(
        r"([一二两三四五六七八九]|\d+)个半(?:小时|钟头)", lambda m: _digits(m.group(1)) + ".5小时", text
    )
    text = text.replace("半小时", "0.5小时").replace("半个小时", "0.5小时")
    text = re.sub(r"\bhalf an hour\b", "0.5 h", text, flags=re.IGNORECASE)
    text = re.sub(r"\ban hour\b", "1 h", text, flags=re.IGNORECASE)
    for value, word in enumerate(_WORDS, start=1):
        text = re.sub(rf"\b{word}(?=[\s-](?:hour|minute|day))", str(value), text, flags=re.IGNORECASE)
    return re.sub(
        r"([一二两三四五六七八九]?十?[一二两三四五六七八九]?)(?=个?(?:小时|分钟|天))",
        lambda match: _numeral(match.group(1)),
        text,
    )


def _digits(text: str) -> str:
    return text if text.isdigit() else _numeral(text)


def _numeral(text: str) -> str:
    if not text:
        return ""
    tens, ten, ones = text.partition("十")
    if not ten:
        return str(_NUMERALS[text[-1]])
    return str((_NUMERALS[tens] if tens else 1) * 10 + (_NUMERALS[ones] if ones else 0))


def _groups(text: str) -> list[list[re.Match[str]]]:
    """Durations with several units (`1h30m`, `1 小时 30 分钟`) as one group each."""
    groups: list[list[re.Match[str]]] = []
    for match in _ONE.finditer(text):
        between = text[groups[-1][-1].end() : match.start()] if groups else "start"
        if re.fullmatch(r"\s*(?:and|又|零|,)?\s*", between) and _size(groups[-1][-1]) > _size(match):
            groups[-1].append(match)
        else:
            groups.append([match])
    return groups


def _size(match: re.Match[str]) -> float:
    return next(size for size in _UNITS if match[f"u{int(size)}"])


def _sum(group: list[re.Match[str]]) -> float:
    return sum(float(match["number"]) * _size(match) for match in group)


def _checked(seconds: float, text: str) -> float:
    if not 1 <= seconds <= _LONGEST_S:
        raise LimitError(f"{text!r} is not between a second and a year")
    return seconds
