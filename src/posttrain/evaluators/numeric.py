"""Evaluator `numeric`: is the number that a text ends up with exactly the gold number?

Ordered rules: `####`, then `\\boxed{}`, then "answer is", then the last number. A text that goes on to a
second question is read up to there. Where a rule finds several numbers that differ (a list, a range, an
open sum), there is no answer: spraying numbers earns nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, Literal

from posttrain.core.frozen import Frozen
from posttrain.core.scores import Item, Output
from posttrain.evaluators.aggregate import Judgement
from posttrain.evaluators.numbers import Number, find_numbers, find_words, normalise

SEVERAL = "several numbers, no single answer"
_LONGEST_TEXT = 100_000
_LONGEST_PLACE = 300
"""Characters behind a mark in which its number is looked for."""
_MOST_MARKS = 50

_QUESTION = re.compile(
    r"^\s*(?i:question|problem|q|user|human)\s*\d*\s*:|(?<=\s)Question\s*\d*\s*:|<\|im_start\|>",
    re.MULTILINE,
)
"""A further question begins at the start of a line, or with a capital within one."""
_HASHES = re.compile(r"####[ \t]*(?:(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:?[ \t]*)?", re.IGNORECASE)
_HEADING = re.compile(r"\s*[.):]\s+\w")
_PHRASE = re.compile(
    r"\banswers?\b(?:\s+\w+){0,6}?\s*(?:\bis\b|\bwas\b|\bequals\b|\bwould be\b|\bwill be\b|=|:)\s*[:=]?"
    r"|答案(?:是|为|：|:)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n|。")
_JOINED = re.compile(r"\s*(?:[,;/&+*×÷·|-]|\bor\b|\band\b|\bto\b|\bx\b|[ \t])+\s*", re.IGNORECASE)
_REFERENCE = re.compile(
    r"\b(?:steps?|equations?|eq|figure|fig|lines?|parts?|examples?|options?|questions?|problems?)\.?\s*\(?$",
    re.IGNORECASE,
)

Rule = Literal["hashes", "boxed", "answer_is", "last_number"]


class NumericSettings(Frozen):
    """`evaluator_settings` of a task that uses `numeric`."""

    strict: Literal["bare", "hashes"] | None = None
    """The strict format: nothing but the number, or a last line `#### number`."""
    secondary: tuple[Literal["opencompass"], ...] = ()
    """Other tools' rules, reported beside ours."""
    answer: str = "answer"
    """The field of the gold answer; of a text with `####`, what follows."""


@dataclass(frozen=True)
class Reading:
    """What was read from a text; `value` None with a rule: the rule's place holds no single number."""

    value: Fraction | None
    rule: Rule | None

    @property
    def shown(self) -> str | None:
        return None if self.value is None else plain(self.value)


def read_answer(text: str) -> Reading:
    """The number that `text` gives as its answer, and the rule that found it."""
    parts = _questions(normalise(text[:_LONGEST_TEXT]))
    for part in parts:
        reading = _read_part(part)
        if reading.rule is not None:
            return reading
    return Reading(None, None)


def _questions(text: str) -> list[str]:
    """The text cut before each further question; a question restated at the start is no further one."""
    marks = [match.start() for match in _QUESTION.finditer(text) if text[: match.start()].strip()]
    edges = [0, *marks, len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def _read_part(text: str) -> Reading:
    for rule, find in _RULES:
        found = find(text)
        if found is not None:
            return Reading(_single(found), rule)
    return Reading(None, None)


def _single(numbers: Sequence[Number]) -> Fraction | None:
    """The one value of the numbers found, None if they differ or one is a range."""
    values = {number.value for number in numbers}
    return values.pop() if len(values) == 1 else None


def _after_hashes(text: str) -> list[Number] | None:
    """The numbers right behind the first `####` that is no heading."""
    for match in islice(_HASHES.finditer(text), _MOST_MARKS):
        line = text[match.end() : match.end() + _LONGEST_PLACE].split("\n", 1)[0]
        numbers = find_numbers(line) or find_words(line)
        if not numbers or re.search(r"[a-z]{3}", line[: numbers[0].start], re.IGNORECASE):
            continue
        if _HEADING.match(line, numbers[0].end) and len(numbers) == 1:
            continue
        return _final(line, numbers)
    return None


def _in_box(text: str) -> list[Number] | None:
    """All numbers inside the last `\\boxed{}`; behind an equals sign only those after it."""
    start = text.rfind("\\boxed")
    content = _braced(text, start + len("\\boxed")) if start >= 0 else None
    if content is None:
        return None
    content = content.rsplit("=", 1)[-1]
    return find_numbers(content) or find_words(content) or [Number(None, 0, 0)]


def _braced(text: str, start: int) -> str | None:
    """What the braces that open at `start` hold; an unclosed box holds the rest of its line."""
    match = re.compile(r"\s*\{").match(text, start)
    if match is None:
        return None
    depth = 1
    for index in range(match.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[match.end() : index]
    return text[match.end() :].split("\n", 1)[0]


def _after_phrase(text: str) -> list[Number] | None:
    """The number that the last "answer is" announces."""
    for match in list(_PHRASE.finditer(text))[: -_MOST_MARKS - 1 : -1]:
        rest = text[match.end() : match.end() + _LONGEST_PLACE].lstrip(" \t\n:*$")
        sentence = rest[: _clause_end(rest)]
        numbers = _first_kind(sentence)
        if numbers:
            return _final(sentence, numbers)
    return None


def _clause_end(text: str) -> int:
    match = _SENTENCE_END.search(text)
    return match.start() if match else len(text)


def _first_kind(sentence: str) -> list[Number]:
    """Digits or words, whichever come first: `twelve (see step 3)` says twelve."""
    digits, words = find_numbers(sentence), find_words(sentence)
    if digits and words:
        return words if words[0].start < digits[0].start else digits
    return digits or words


def _final(sentence: str, numbers: Sequence[Number]) -> list[Number]:
    """The first number of a sentence, or the first behind its last equals sign, with what is joined to it."""
    equals = sentence.rfind("=")
    behind = [number for number in numbers if number.start > equals] or list(numbers)
    joined = [behind[0]]
    for number in behind[1:]:
        if not _JOINED.fullmatch(sentence[joined[-1].end : number.start]):
            break
        joined.append(number)
    return joined


def _at_the_end(text: str) -> list[Number] | None:
    """The last number, with those directly joined to it; words only where there are no digits."""
    numbers = find_numbers(text)
    real = [number for number in numbers if not _REFERENCE.search(text[: number.start][-24:])] or numbers
    real = real or find_words(text)
    if not real:
        return None
    joined = [real[-1]]
    for number in reversed(real[:-1]):
        between = text[number.end : joined[0].start]
        if "\n" in between or not _JOINED.fullmatch(between):
            break
        joined.insert(0, number)
    return joined


_RULES: tuple[tuple[Rule, Callable[[str], list[Number] | None]], ...] = (
    ("hashes", _after_hashes),
    ("boxed", _in_box),
    ("answer_is", _after_phrase),
    ("last_number", _at_the_end),
)


def plain(value: Fraction) -> str:
    """A value as digits: a decimal where it ends, else a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    places = next(count for count in range(1, 2000) if (value * 10**count).denominator == 1)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def gold_value(gold: object) -> Fraction:
    """The gold number of a row; ValueError if there is not exactly one."""
    text = normalise(str(gold)).rpartition("####")[2].strip()
    value = _single(find_numbers(text))
    if value is None:
        raise ValueError(f"the gold answer {str(gold)[-80:]!r} is not one number")
    return value


def opencompass_reads(text: str) -> str:
    """OpenCompass' gsm8k rule, for numbers that compare with published ones: the last number before the
    next `Question:`, commas splitting numbers as they do there; `NULL` if there is none."""
    found = re.findall(r"-?\d+\.\d+|-?\d+", text.split("Question:", maxsplit=1)[0])
    return found[-1] if found else "NULL"


class NumericJudge:
    """Judges one text against one gold number."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = NumericSettings.model_validate(settings)
        self.constant = self._settings.answer

    def gold(self, item: Item) -> str:
        text = str(item.fields[self._settings.answer])
        return text if self._settings.strict != "bare" else plain(gold_value(text))

    def judge(self, item: Item, output: Output) -> Judgement:
        gold = gold_value(item.fields[self._settings.answer])
        reading = read_answer(output.text)
        right = reading.value == gold
        return Judgement(
            value=float(right),
            extracted=reading.shown,
            rule=reading.rule,
            strict=self._strict(output.text, right=right),
            reason=SEVERAL if reading.rule and reading.value is None else None,
            secondary={name: _SECONDARY[name](output.text, gold) for name in self._settings.secondary},
        )

    def _strict(self, text: str, *, right: bool) -> float | None:
        if self._settings.strict is None:
            return None
        pattern = r"-?\d+(?:\.\d+)?" if self._settings.strict == "bare" else r"(?s:.*)\n?#### -?[\d,.]*\d"
        return float(right and re.fullmatch(pattern, text.strip()) is not None)


def _opencompass(text: str, gold: Fraction) -> float:
    found = opencompass_reads(text)
    return float(found != "NULL" and abs(Fraction(found) - gold) < Fraction(1, 10**6))


_SECONDARY: Mapping[str, Callable[[str, Fraction], float]] = {"opencompass": _opencompass}
