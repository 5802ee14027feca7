"""Reading numbers out of running text, as people and models write them.

Thousands in all styles, currency signs, percent, Unicode digits and minus signs, fractions, scientific
notation, LaTeX, number words. What holds no single number (a range, a date, a version) is found too, as
a number without a value, so that a rule cannot pick a part of it. Nothing of the text is ever evaluated.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

_LONGEST = 400
"""Characters and powers of ten beyond which a number is not read."""


@dataclass(frozen=True)
class Number:
    """A number at `text[start:end]` of the normalised text; `value` None: no single number."""

    value: Fraction | None
    start: int
    end: int


_DASHES = dict.fromkeys(map(ord, "−‒–﹣－⁻➖"), "-") | {ord("—"): " ", ord("―"): " "}
_SPACES = dict.fromkeys(map(ord, "\u00a0\u2007\u2008\u2009\u200a\u202f\u205f"), " ")
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"), None)
_SIGNS = {
    ord("’"): "'",
    ord("‘"): "'",
    ord("，"): ",",
    ord("．"): ".",
    ord("＋"): "+",
    ord("％"): "%",
    ord("＝"): "=",
    ord("／"): "/",
    ord("⁄"): "/",
    ord("∕"): "/",
    ord("٫"): ".",
    ord("٬"): ",",
    ord("："): ":",
}
_TABLE = _DASHES | _SPACES | _INVISIBLE | _SIGNS
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_JOINT = "\x00"
"""Stands before a vulgar fraction until it is known whether a whole number precedes it."""

_REWRITES = (
    (re.compile(rf"(?<=\d){_JOINT}"), " "),
    (re.compile(_JOINT), ""),
    (re.compile(r"(?<![\w*)])\*\*(?=[^\s*])([^*\n]+)(?<=\S)\*\*(?![\w*])"), r" \1 "),  # bold, not a power
    (re.compile(r"\{,\}|,\\!|\\!,"), ","),
    (re.compile(r"(?<=\d)(?:\\[,;: ]|~)(?=\d)"), " "),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\[,;:]|\\q?quad|\\(?:left|right|displaystyle|approx)(?![a-z])"), " "),
    (re.compile(r"\\[dtc]?frac\s*\{\s*([-\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}"), _JOINT + r"\1/\2"),
    (re.compile(r"\\[dtc]?frac\s*(\d)\s*(\d)"), _JOINT + r"\1/\2"),
    (re.compile(rf"(?<=\d){_JOINT}"), " "),
    (re.compile(_JOINT), ""),
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), "×"),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox|operatorname)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\([$%#&_])"), r"\1"),
)

_GROUPED = (
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"  # 1,234,567.8
    r"|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?"  # 12,34,567
    r"|\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?"  # 1.234.567,8
    r"|\d{1,3}(?:\.\d{3})+,\d+"  # 1.234,5
    r"|\d{1,3}(?:'\d{3})+(?:[.,]\d+)?"  # 1'234
    r"|\d{1,3}(?:_\d{3})+(?:\.\d+)?"  # 1_234
    r"|[1-9]\d{0,2}(?: \d{3})+(?:[.,]\d+)?"  # 1 234
)
_PLAIN = r"\d+\.\d+|(?<![\w.])\.\d+|\d+,\d+|\d+"
_AMOUNT = re.compile(rf"(?:{_GROUPED})(?![\d]|[.,']\d)|(?:{_PLAIN})")
_CURRENCY = r"(?:US|A|C|HK|S)?[$€£¥₹₩₽฿]"
_PREFIX = re.compile(rf"(?P<lead>[-+])?(?P<currency>{_CURRENCY} ?)?(?P<inner>[-+])?$")
_MONEY_WORD = re.compile(r"(?:\b(?:rs|usd|eur|gbp|cny|rmb|inr|us)\.?\s?)$", re.IGNORECASE)
_EXPONENT = re.compile(
    r"[eE](?P<e>[-+]?\d{1,4})(?![\w.])"
    r"| ?[×xX*·] ?10 ?(?:\^|\*\*) ?"
    r"(?:\{\s*(?P<b>[-+]?\d{1,4})\s*\}|\(\s*(?P<p>[-+]?\d{1,4})\s*\)|(?P<t>[-+]?\d{1,4}))"
)
_POWER = re.compile(r"(?:\^|\*\*) ?(?:\{\s*(?P<b>[-+]?\d{1,3})\s*\}|(?P<t>[-+]?\d{1,3}))")
_SCALE = re.compile(r"[ -]?(hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)
_SHORT_SCALE = re.compile(r"([kKmMbB])(?!\w)")
_FACTORS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "k": 3, "m": 6, "b": 9}
_DENOMINATOR = re.compile(r" ?/ ?(\d{1,9}(?:\.\d+)?)(?![\d/]|[.,]\d)")
_MIXED = re.compile(r"(?: | and | & )(\d{1,9})/(\d{1,9})(?![\d/]|[.,]\d)")
_COMPOUND = re.compile(rf"(?:[/:.,]|%? ?(?:-|~|\.\.\.?) ?{_CURRENCY}?)(?=\d)")
"""What makes more than one number of the digits on both sides: a range, a date, a time, a version, a list."""
_COMPOUND_REST = re.compile(rf"[\d.,:/%~\-]*\d(?:(?: - |~){_CURRENCY}?\d[\d.,]*)*|")


def normalise(text: str) -> str:
    """The text with digits, signs, spaces, vulgar fractions and simple LaTeX in one plain spelling."""
    text = _SUPERSCRIPT.sub(lambda match: "^" + match.group().translate(_SUPERSCRIPTS), text)
    text = "".join(_plain(character) for character in text.translate(_TABLE))
    for pattern, plain in _REWRITES:
        text = pattern.sub(plain, text)
    return text


def _plain(character: str) -> str:
    if character.isascii():
        return character
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.decimal(character))
    spelled = unicodedata.normalize("NFKC", character)
    if unicodedata.category(character) == "No" and "⁄" in spelled:
        return _JOINT + spelled.replace("⁄", "/")
    return character


def find_numbers(text: str) -> list[Number]:
    """All numbers of a normalised text, from left to right, none inside another."""
    found: list[Number] = []
    position = 0
    while match := _AMOUNT.search(text, position):
        number = _number_at(text, match)
        position = max(match.end(), number.end if number else 0)
        if number is not None:
            found.append(number)
    return found


def _number_at(text: str, match: re.Match[str]) -> Number | None:
    """The number whose digits `match` found, with sign, fraction, exponent and range around it."""
    start, end = match.span()
    if _part_of_word(text, start):
        return None
    amount = _amount(match.group())
    value, end = _extended(text, amount, match.group(), end)
    sign, start = _signed(text, start)
    if more := _COMPOUND.match(text, end):
        return Number(None, start, _end_of(_COMPOUND_REST.match(text, more.end()), more.end()))
    if value is not None and sign < 0:
        value = -value
    return Number(value, start, end)


def _part_of_word(text: str, start: int) -> bool:
    """Whether the digits belong to a name or an exponent: `x2`, `m^2`, `H2O`."""
    if start == 0:
        return False
    before = text[start - 1]
    if before in "^_" or (before == "{" and text[start - 2 : start - 1] in ("^", "_")):
        return True
    return before.isalpha() and before.isascii() and not _MONEY_WORD.search(text[max(0, start - 6) : start])


def _amount(digits: str) -> Fraction | None:
    if len(digits) > _LONGEST:
        return None
    if digits.count(",") == 1 and "." not in digits and not _thousands(digits):
        digits = digits.replace(",", ".")
    elif "," in digits and "." in digits and digits.rindex(",") > digits.rindex("."):
        digits = digits.replace(".", "").replace(",", ".")
    elif digits.count(".") > 1:
        digits = digits.replace(".", "")
    return Fraction(re.sub(r"[,' _]", "", digits))


def _thousands(digits: str) -> bool:
    """Whether the one comma of `digits` groups thousands: `1,234` does, `0,123` and `1,23` do not."""
    head, _, tail = re.sub(r"[' _]", "", digits).partition(",")
    return len(tail) == 3 and 1 <= len(head) <= 3 and head != "0"


def _extended(text: str, value: Fraction | None, digits: str, end: int) -> tuple[Fraction | None, int]:
    """What follows the digits and belongs to the number: a fraction, an exponent, a word of scale."""
    whole = digits.isdigit()
    if whole and (mixed := _MIXED.match(text, end)) and int(mixed[2]):
        fraction = Fraction(int(mixed[1]), int(mixed[2]))
        return (None if value is None else value + fraction), mixed.end()
    if over := _DENOMINATOR.match(text, end):
        divisor = Fraction(over[1])
        return (value / divisor if value is not None and divisor else None), over.end()
    if exponent := _EXPONENT.match(text, end):
        power = int(next(group for group in exponent.groups() if group))
        fits = value is not None and abs(power) <= _LONGEST
        return (value * Fraction(10) ** power if fits and value is not None else None), exponent.end()
    if power_of := _POWER.match(text, end):
        power = int(power_of["b"] or power_of["t"])
        small = value is not None and value != 0 and abs(power) <= 64 and len(digits) <= 6
        return (value**power if small and value is not None else None), power_of.end()
    for pattern in (_SCALE, _SHORT_SCALE):
        scale = pattern.match(text, end)
        if scale and (pattern is _SCALE or _has_currency(text, end - len(digits))):
            factor = 10 ** _FACTORS[scale[1].lower()]
            return (None if value is None else value * factor), scale.end()
    return value, end


def _has_currency(text: str, start: int) -> bool:
    return bool(re.search(rf"{_CURRENCY}\s?-?$", text[max(0, start - 6) : start]))


def _signed(text: str, start: int) -> tuple[int, int]:
    """The sign before the digits, a currency sign between them allowed, and where the number starts."""
    window = max(0, start - 8)
    match = _PREFIX.search(text[window:start])
    if match is None or not match.group():
        return 1, start
    first = window + match.start()
    outer, inner = match["lead"] or "", match["inner"] or ""
    joined = first > 0 and (text[first - 1].isalnum() or text[first - 1] in ")]}-+")
    if match["currency"] is None or outer:
        # `5-3`, `x-3` and `pay--3` subtract or dash; only a sign that nothing precedes belongs to the number
        return (-1 if outer == "-" and not joined and not inner else 1), first if not joined else start
    return (-1 if inner == "-" else 1), first


def _end_of(match: re.Match[str] | None, otherwise: int) -> int:
    return match.end() if match else otherwise


_UNITS = {
    name: value
    for value, name in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
_TENS = {
    name: 10 * value
    for value, name in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], start=2
    )
}
_WORD = "|".join(sorted([*_UNITS, *_TENS, "hundred", "thousand", "million", "half"], key=len, reverse=True))
_WORDS = re.compile(
    rf"(?:(?:minus|negative)\s+)?(?<![\w-])(?:an?\s+(?=(?:hundred|thousand|million)\b))?"
    rf"(?:{_WORD})\b(?:(?:\s+and\s+|\s*-\s*|\s+)(?:{_WORD})\b)*",
    re.IGNORECASE,
)


def find_words(text: str) -> list[Number]:
    """Numbers written as words (`twelve`, `twenty-five`, `two hundred and five`), from left to right."""
    found: list[Number] = []
    for match in _WORDS.finditer(text):
        if re.match(r"\s+of\b", text[match.end() :]) and match.group().lower() == "one":
            continue
        found.append(Number(_word_value(match.group().lower()), match.start(), match.end()))
    return found


def _word_value(phrase: str) -> Fraction | None:
    words = re.findall(r"[a-z]+", phrase)
    sign = -1 if words[0] in ("minus", "negative") else 1
    total = current = 0
    last_kind = ""
    for word in words:
        kind, step = _word_kind(word)
        if kind in ("unit", "tens"):
            # `five six` and `ten twenty` are two numbers, not one
            if last_kind == "unit" or (last_kind == "tens" and (kind == "tens" or step >= 10)):
                return None
            current += step
        elif kind == "hundred":
            current = max(current, 1) * 100
        elif kind == "scale":
            total, current = total + max(current, 1) * step, 0
        elif kind == "half":
            return Fraction(1, 2) if len(words) == 1 else None
        last_kind = kind or last_kind
    return Fraction(sign * (total + current))


def _word_kind(word: str) -> tuple[str, int]:
    if word in _UNITS:
        return "unit", _UNITS[word]
    if word in _TENS:
        return "tens", _TENS[word]
    if word in ("thousand", "million"):
        return "scale", 10 ** _FACTORS[word]
    return (word, 0) if word in ("hundred", "half") else ("", 0)
