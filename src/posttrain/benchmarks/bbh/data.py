"""BIG-Bench Hard: all rows of the 27 subtasks, each with how its answer is to be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from posttrain.infra.files import write_jsonl

WORDS = {
    "boolean_expressions": ("True", "False"),
    "causal_judgement": ("Yes", "No"),
    "formal_fallacies": ("valid", "invalid"),
    "navigate": ("Yes", "No"),
    "sports_understanding": ("yes", "no"),
    "web_of_lies": ("Yes", "No"),
}
NUMBERS = ("multistep_arithmetic_two", "object_counting")
BRACKETS = ("dyck_languages",)
TEXTS = ("word_sorting",)
LETTERS = (
    "date_understanding",
    "disambiguation_qa",
    "geometric_shapes",
    "hyperbaton",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "logical_deduction_three_objects",
    "movie_recommendation",
    "penguins_in_a_table",
    "reasoning_about_colored_objects",
    "ruin_names",
    "salient_translation_error_detection",
    "snarks",
    "temporal_sequences",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects",
)
SUBTASKS = tuple(sorted((*WORDS, *NUMBERS, *BRACKETS, *TEXTS, *LETTERS)))
_OPTION = re.compile(r"^\([A-Z]\)", re.MULTILINE)


def prepare(target: Path, *, source: Any) -> None:
    rows = [
        {"question": row["input"], "answer": row["target"], "subtask": subtask, **reading(row, subtask)}
        for subtask in SUBTASKS
        for row in source.rows("lukaemon/bbh", subtask, "test")
    ]
    write_jsonl(target / "rows.jsonl", rows)


def reading(row: dict[str, Any], subtask: str) -> dict[str, Any]:
    """How the row's answer is read, and the sentence that asks for it."""
    if subtask in WORDS:
        labels = list(WORDS[subtask])
        return {"kind": "word", "form": f"Answer with {labels[0]} or {labels[1]}.", "labels": labels}
    if subtask in NUMBERS:
        return {"kind": "number", "form": "Answer with the number.", "labels": []}
    if subtask in BRACKETS:
        return {"kind": "brackets", "form": "Answer with the missing brackets only.", "labels": []}
    if subtask in TEXTS:
        return {"kind": "text", "form": "Answer with the sorted words, separated by spaces.", "labels": []}
    labels = list(dict.fromkeys(_OPTION.findall(row["input"])))
    if row["target"] not in labels:
        # three rows of the set give the text of the option instead of its letter
        return {"kind": "text", "form": "Answer with the text of the right option.", "labels": []}
    return {
        "kind": "letter",
        "form": "Answer with the letter of the right option, such as (A).",
        "labels": labels,
    }
