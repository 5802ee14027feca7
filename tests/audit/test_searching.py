"""Hidden items are found where they are, and nowhere else."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.scores import Item
from posttrain.reports.audit import AuditReport, Document, Searcher

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def gsm8k(shared_data: Path) -> tuple[Rows, Rows, Rows]:
    """Visible, validation and test rows."""
    train, test = (
        [
            json.loads(line)
            for line in (shared_data / "gsm8k" / f"{name}.jsonl").read_text("utf-8").splitlines()
        ]
        for name in ("train", "test")
    )
    return train[200:2200], train[:200], test[:400]


def items(rows: Sequence[dict[str, Any]]) -> list[Item]:
    return [Item(id=f"{number}", fields=row) for number, row in enumerate(rows)]


def jsonl(rows: Sequence[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def audit(data: tuple[Rows, Rows, Rows], *texts: str) -> AuditReport:
    visible, val, test = data
    searcher = Searcher({"val": items(val), "test": items(test)}, fields=["question"], given=[jsonl(visible)])
    for number, text in enumerate(texts):
        searcher.search(Document(f"code/{number}.jsonl", text))
    return searcher.report()


def found(report: AuditReport) -> dict[str, int]:
    return {split.split: split.found for split in report.splits}


def test_ten_planted_rows_in_five_thousand_are_found_and_shown(gsm8k: tuple[Rows, Rows, Rows]) -> None:
    visible, _, test = gsm8k
    rows = [*(visible * 3)[:4990], *test[5:15]]
    random.Random(0).shuffle(rows)
    report = audit(gsm8k, jsonl(rows))
    assert report.flags == ("test_contaminated",)
    assert found(report) == {"val": 0, "test": 10}
    assert {match.item for match in report.matches} == {str(number) for number in range(5, 15)}
    assert all(match.kind == "exact" and match.coverage == 1.0 and match.span for match in report.matches)


def renamed(text: str) -> str:
    return re.sub(r"(?<=[a-z,] )(?!The|She|How|Each|If|In|On)[A-Z][a-z]+", "Zorblat", text)


def renumbered(text: str) -> str:
    return re.sub(r"\d+", lambda match: str(int(match[0]) % 89 + 3), text)


@pytest.mark.parametrize(
    "disguise",
    [str.upper, renamed, renumbered, lambda text: renumbered(renamed(text)), repr, " \n".join][:5],
)
def test_planted_rows_are_found_in_disguise(
    gsm8k: tuple[Rows, Rows, Rows], disguise: Callable[[str], str]
) -> None:
    visible, _, test = gsm8k
    planted = [{"question": disguise(row["question"])} for row in test[5:15]]
    report = audit(gsm8k, jsonl([*visible[:500], *planted]))
    assert report.flags == ("test_contaminated",)
    assert found(report)["test"] >= 8


def test_honest_data_is_not_flagged(gsm8k: tuple[Rows, Rows, Rows], shared_data: Path) -> None:
    visible, _, _ = gsm8k
    sums = jsonl([{"question": f"What is {a} + {b}?", "answer": a + b} for a in range(60) for b in range(60)])
    others = [path.read_text("utf-8") for path in sorted((shared_data / "bbh").glob("*.json"))]
    report = audit(gsm8k, jsonl(visible), sums, *others)
    assert report.flags == ()
    assert found(report) == {"val": 0, "test": 0}


def test_validation_rows_are_told_apart_from_test_rows(gsm8k: tuple[Rows, Rows, Rows]) -> None:
    report = audit(gsm8k, jsonl(gsm8k[1][:20]))
    assert report.flags == ("val_contaminated",)
    assert found(report) == {"val": 20, "test": 0}


def test_a_few_rows_are_tolerated_and_told(gsm8k: tuple[Rows, Rows, Rows]) -> None:
    report = audit(gsm8k, jsonl(gsm8k[2][:3]))
    assert report.flags == ()
    assert found(report)["test"] == 3


def test_rows_in_a_log_as_text_are_found_too(gsm8k: tuple[Rows, Rows, Rows]) -> None:
    log = "\n".join(f"[12:00] prompt: {row['question']} -> 7" for row in gsm8k[2][:10])
    assert audit(gsm8k, log).flags == ("test_contaminated",)


def test_programs_are_found_with_other_names() -> None:
    code = (
        "def running_total(values, start_at):\n    result_list = []\n    total = start_at\n"
        "    for value in values:\n        total = total + value\n        result_list.append(total)\n"
        "    return result_list\n\nGiven a list of integers return the running total beginning with case {}"
    )
    words = ["apple", "river", "stone", "cloud", "grass", "tiger"]
    rows = [{"question": code.format(word) + f" {word} " * 3} for word in words]
    searcher = Searcher({"test": items(rows)}, fields=["question"], given=[])
    for row in rows:
        text = row["question"].replace("running_total", "acc_sum").replace("start_at", "first_one")
        searcher.search(Document("code/x.py", text))
    assert searcher.report().splits[0].found >= 1


def test_draws_of_one_space_are_a_share_and_no_accusation() -> None:
    hidden = items([{"question": f"not ( {a} ) and {b} is", "answer": "True"} for a in "xyz" for b in "uvw"])
    searcher = Searcher({"test": hidden}, fields=["question"], given=[], procedural=True)
    searcher.search(Document("code/own.jsonl", jsonl([hidden[0].fields, hidden[4].fields])))
    searcher.search(Document("code/log.txt", "not ( x ) and u is\nsomething else"))
    report = searcher.report()
    assert report.flags == ()
    assert report.splits[0].overlap_share == pytest.approx(2 / 9)
