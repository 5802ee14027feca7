"""Reading answers: a table of texts, and every finite decimal in every style."""

from __future__ import annotations

import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.evaluators.numeric import opencompass_reads, plain, read_answer

PUBLIC_CASES = [  # texts that users of other harnesses reported as read wrongly
    ("The answer is 1,234.", "1234"),
    (r"\boxed{9{,}500}", "9500"),
    (r"\boxed{\frac{1}{2}}", "0.5"),
    ("answer 42 (see step 3)", "42"),
    ("12 apples and 3 left; answer: twelve", "12"),
    ("Question: restated, with 5 and 6. The answer is 7", "7"),
    ("3/4", "0.75"),
    ("$29.00", "29"),
    ("20%", "20"),
    ("５０", "50"),
    ("She has 18 eggs, so the total is 18.", "18"),
    ("1234.", "1234"),
    ("½ hour = 30 minutes.", "30"),
    ("#### 18\n\nQuestion: What is 2 + 2?\n#### 4", "18"),
    ("The total is -5 degrees", "-5"),
    ("711", "711"),
]

THOUSANDS = [
    ("1,234,567", "1234567"),
    ("1 234 567", "1234567"),
    ("1\u202f234\u00a0567", "1234567"),
    ("1'234'567", "1234567"),
    ("1’234", "1234"),
    ("1_234_567", "1234567"),
    ("1.234.567", "1234567"),
    ("1.234.567,8", "1234567.8"),
    ("1.234,5", "1234.5"),
    ("12,34,567", "1234567"),
    ("1 000 000,50", "1000000.5"),
    (r"\(1\,234\)", "1234"),
    (r"9,\!500", "9500"),
    ("0,5", "0.5"),
    ("0,125", "0.125"),
    ("3,75", "3.75"),
]

SIGNS_AND_UNITS = [
    ("-$5", "-5"),
    ("$-5", "-5"),
    ("−5", "-5"),
    ("–5", "-5"),
    ("＋5", "5"),
    ("US$1,200", "1200"),
    ("5€", "5"),
    ("£3,000", "3000"),
    ("Rs.500", "500"),
    ("Rs 1,500", "1500"),
    ("USD 40", "40"),
    (r"\boxed{\$18}", "18"),
    (r"\boxed{5\%}", "5"),
    (r"\boxed{18\text{ dollars}}", "18"),
    ("5kg", "5"),
    ("He came in 3rd", "3"),
    ("25 m^2", "25"),
    ("25 m²", "25"),
    ("H2O and x2, then 4", "4"),
    ("COVID-19", "19"),
    ("$5k", "5000"),
    ("$1.5M", "1500000"),
    ("5 million people", "5000000"),
    ("٣٤", "34"),
    ("**18**", "18"),
    ("Final Answer: **$1,080**", "1080"),
    (r"The final answer is \(42\).", "42"),
    ("- 5 apples\n- 6 apples", "6"),
]

FRACTIONS_AND_POWERS = [
    ("1 1/2 cups", "1.5"),
    ("3½", "3.5"),
    ("-½", "-0.5"),
    ("2 and 3/4 miles", "2.75"),
    (r"\boxed{3\frac12}", "3.5"),
    (r"\boxed{-\dfrac{3}{4}}", "-0.75"),
    ("1/3", "1/3"),
    ("1.5e3", "1500"),
    ("2E-2", "0.02"),
    ("1.5 × 10^3", "1500"),
    (r"1.5 \times 10^{-3}", "0.0015"),
    ("2·10³", "2000"),
    ("2^10", "1024"),
    ("10² = 100", "100"),
    (".5", "0.5"),
]

WORDS = [
    ("twenty-five", "25"),
    ("two hundred and five", "205"),
    ("three thousand four hundred", "3400"),
    ("a hundred", "100"),
    ("minus five", "-5"),
    ("The answer is zero.", "0"),
    ("Half of them", "0.5"),
]

ORDER = [
    ("#### 18", "18"),
    ("#### $1,234.50 dollars", "1234.5"),
    ("#### Answer: 7", "7"),
    ("#### Step 1: do 5\n#### 2. Compute \nSo 7", "7"),
    ("#### 5 but the answer is 7, or \\boxed{8}", "5"),
    (r"\boxed{8}, so the answer is 7", "8"),
    (r"first \boxed{1}, finally \boxed{2}", "2"),
    (r"\boxed{x = 5}", "5"),
    ("The answer is 5? No. The answer is 7.", "7"),
    ("The answer is 2 + 3 = 5.", "5"),
    ("The answer is:\n\n12", "12"),
    ("The answer is 18. Check: 2 ways", "18"),
    ("The answer is 18\n\nQuestion: What is 5+5? The answer is 10", "18"),
    ("The answer to the question is 9 apples", "9"),
    ("答案是 12。", "12"),
    ("So 16-3-4=9", "9"),
    ("She earns 9 * 2 = $18 every day (see step 4).", "18"),
    ("18\n18", "18"),
    ("It is 7.\nUser: and 3 + 3?\n6", "7"),
    ("For each question: 3 points. So 5 questions give 15.\n#### 15", "15"),
]

NO_SINGLE_NUMBER = [
    "",
    "I do not know.",
    r"\boxed{}",
    r"\boxed{11, 12, 13}",
    "1, 2, 3, 4, 5",
    "1 or 2",
    "4 and 5",
    "1,2,3,4,5",
    "between 5 and 10",
    "5-10 apples",
    "$5 - $10",
    "5 to 10",
    "#### 10-12",
    "Answer = 5 or 6",
    "The answer is 2 + 3",
    "It is 3:30",
    "05/07/2024",
    "version 1.2.3",
    "the answer is one of them",
    "5/0",
    "9" * 500,
    "1e9999",
]


@pytest.mark.parametrize(
    ("text", "value"),
    [*PUBLIC_CASES, *THOUSANDS, *SIGNS_AND_UNITS, *FRACTIONS_AND_POWERS, *WORDS, *ORDER],
)
def test_the_answer_is_read(text: str, value: str) -> None:
    assert read_answer(text).shown == value


@pytest.mark.parametrize("text", NO_SINGLE_NUMBER)
def test_several_numbers_or_none_are_no_answer(text: str) -> None:
    assert read_answer(text).value is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("#### 1", "hashes"),
        (r"\boxed{1}", "boxed"),
        ("the answer is 1", "answer_is"),
        ("so 1", "last_number"),
        ("one", "last_number"),
        ("", None),
    ],
)
def test_the_rule_that_was_used_is_told(text: str, rule: str | None) -> None:
    assert read_answer(text).rule == rule


def test_spraying_all_numbers_earns_nothing() -> None:
    for spray in (", ".join(map(str, range(100))), " or ".join(map(str, range(100)))):
        assert read_answer(spray).value is None


decimals = st.decimals(
    min_value=Decimal("-1e12"), max_value=Decimal("1e12"), allow_nan=False, allow_infinity=False, places=3
)


def grouped(value: Decimal, separator: str, point: str) -> str:
    return f"{value:,f}".replace(",", "\0").replace(".", point).replace("\0", separator)


STYLES = {
    "plain": lambda value: f"{value:f}",
    "commas": lambda value: grouped(value, ",", "."),
    "spaces": lambda value: grouped(value, " ", "."),
    "decimal comma": lambda value: grouped(value, "\u202f", "," if abs(value) >= 1000 else "."),
    "apostrophes": lambda value: grouped(value, "'", "."),
    "underscores": lambda value: grouped(value, "_", "."),
    "full width": lambda value: f"{value:f}".translate(str.maketrans("0123456789", "０１２３４５６７８９")),
    "minus sign": lambda value: f"{value:,f}".replace("-", "−"),
    "dollars": lambda value: f"{value:,f}".replace("-", "-$") if value < 0 else f"${value:,f}",
    "latex": lambda value: rf"\({grouped(value, '{,}', '.')}\)",
    "boxed": lambda value: rf"So \boxed{{{value:,f}}}.",
    "hashes": lambda value: f"#### {value:f}",
    "percent": lambda value: f"{value:f}%",
    "scientific": lambda value: f"{value:.25E}",
    "sentence": lambda value: f"The answer is {value:,f}.",
    "bold": lambda value: f"**{value:,f}**",
    "fraction": lambda value: "{}/{}".format(*Fraction(value).as_integer_ratio()),
}


@pytest.mark.parametrize("style", STYLES)
@given(value=decimals)
def test_every_decimal_is_read_back_exactly(style: str, value: Decimal) -> None:
    assert read_answer(STYLES[style](value)).value == Fraction(value)


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    read_answer(text)


@given(st.text(alphabet="0123456789.,-+/ '_$%^e{}\\()#x", max_size=60))
def test_no_mess_of_digits_makes_the_reader_fail(text: str) -> None:
    read_answer(text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", ["1,", "1 ", "9", "#### ", "answer is ", "\\boxed{", "1-", "one ", "**", "1/"]
)
def test_long_texts_are_read_in_no_time(piece: str) -> None:
    started = time.process_time()
    read_answer(piece * (60_000 // len(piece)))
    assert time.process_time() - started < 2.0


def test_plain_writes_decimals_that_end_and_fractions_that_do_not() -> None:
    assert plain(Fraction(-5, 4)) == "-1.25"
    assert plain(Fraction(1, 3)) == "1/3"
    assert plain(Fraction(10**20)) == "1" + "0" * 20


def test_opencompass_rule_is_theirs_faults_included() -> None:
    assert opencompass_reads("The answer is 1,234.") == "234"
    assert opencompass_reads("5 Question: 6") == "5"
    assert opencompass_reads("Question: 6") == "NULL"
