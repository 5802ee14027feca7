"""Answers as models write them, well and badly."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from posttrain.llm.extraction import Block, Unreadable, describe, read_answer


class Idea(BaseModel):
    hypothesis: str = Field(min_length=1)
    method: Literal["SFT", "GRPO"] = "SFT"
    minutes: float | None = None


class Script(BaseModel):
    code: Annotated[str, Block("python")] = Field(description="the whole script")
    changes: str = ""


IDEA = '{"hypothesis": "more steps", "method": "GRPO"}'


@pytest.mark.parametrize(
    "text",
    [
        IDEA,
        f"Sure! Here it is:\n\n{IDEA}\n\nI hope this helps.",
        f"```json\n{IDEA}\n```",
        f"```\n{IDEA}\n```",
        f"<think>{{maybe}} {{'hypothesis': 1}}</think>\n{IDEA}",
        '{"hypothesis": "more steps", "method": "GRPO",}',
        '```json\r\n{"hypothesis": "more steps",\r\n "method": "GRPO"\r\n}\r\n```',
        f'The schema {{"hypothesis": 3}} is filled as {IDEA}',
        '{"hypothesis": "more steps", "method": "GRPO", "confidence": 0.9}',
    ],
    ids=["plain", "prose", "fence", "bare-fence", "thinking", "comma", "crlf", "second", "more"],
)
def test_an_object_is_found_whatever_stands_around_it(text: str) -> None:
    assert read_answer(Idea, text) == Idea(hypothesis="more steps", method="GRPO")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("I would train longer.", "no JSON object"),
        ('{"method": "SFT"}', "hypothesis"),
        ('{"hypothesis": "a", "method": "DPO"}', "method"),
        ('{"hypothesis": "a", "minutes": NaN}', "no JSON object"),
        ('{"hypothesis": "cut in the mid', "no JSON object"),
        ("{" * 100_000, "no JSON object"),
        ('{"a":' * 50_000, "no JSON object"),
        ('["hypothesis"]', "no JSON object"),
    ],
)
def test_what_is_no_answer_is_told_by_its_fault(text: str, fault: str) -> None:
    with pytest.raises(Unreadable, match=fault):
        read_answer(Idea, text)


def test_commas_inside_of_strings_stay() -> None:
    assert read_answer(Idea, '{"hypothesis": "a, ] b,}",}').hypothesis == "a, ] b,}"


def test_a_raw_line_end_inside_of_a_string_is_read() -> None:
    assert read_answer(Idea, '{"hypothesis": "one\ntwo"}').hypothesis == "one\ntwo"


def test_what_no_file_could_hold_is_taken_out() -> None:
    assert read_answer(Idea, r'{"hypothesis": "a\u0000b\ud800c 中文"}').hypothesis == "ab?c 中文"


@pytest.mark.parametrize(
    "text",
    [
        '{"changes": "lr"}\n```python\nx = {"a": 1}\n```\n',
        'Changes below.\n```py\nx = {"a": 1}\n```\n{"changes": "lr"}',
        '{"changes": "lr", "code": "x = {\\"a\\": 1}\\n"}',
        '{"changes": "lr"}\n```python\nx = {"a": 1}\n',
    ],
    ids=["behind", "before", "inside", "unclosed"],
)
def test_code_may_stand_in_a_fence_of_its_own(text: str) -> None:
    script = read_answer(Script, text)
    assert (script.code, script.changes) == ('x = {"a": 1}\n', "lr")


def test_a_lone_fence_is_enough_where_nothing_else_is_needed() -> None:
    assert read_answer(Script, "```python\nprint(1)\n```").code == "print(1)\n"


def test_of_several_fences_the_longest_counts() -> None:
    text = "Run `pip`:\n```python\nimport x\n```\nthen\n```python\nimport x\nx.train(steps=3)\n```"
    assert read_answer(Script, text).code == "import x\nx.train(steps=3)\n"


def test_the_description_names_every_field_and_its_kind() -> None:
    told = describe(Idea) + describe(Script)
    for part in (
        '"hypothesis": string',
        'one of "SFT", "GRPO"',
        '"minutes": number',
        "```python",
        "whole script",
    ):
        assert part in told


@pytest.mark.parametrize(
    "text",
    ["`" * 300_000, "```" * 100_000, "<think>" * 50_000, '{"a":"' + '\\"' * 200_000, "~~~\n" * 50_000],
    ids=["ticks", "fences", "thinking", "quotes", "tildes"],
)
def test_what_is_repeated_without_end_is_read_in_no_time(text: str) -> None:
    began = time.process_time()
    with suppress(Unreadable):
        read_answer(Script, text)
    assert time.process_time() - began < 3.0


@pytest.mark.parametrize("outer", ["", "python"])
def test_of_two_fences_around_each_other_the_inner_one_is_read(outer: str) -> None:
    text = f"```{outer}\n```python\nprint(1)\n```\n```"
    assert read_answer(Script, text).code == "print(1)\n"


def test_an_object_nested_too_deeply_is_a_fault_of_the_answer() -> None:
    with pytest.raises(Unreadable):
        read_answer(Idea, '{"hypothesis": "a", "more": ' + "[" * 900 + "]" * 900 + "}")


@pytest.mark.parametrize(
    "code",
    [
        'SYSTEM = "Reason in <think> and </think>, then answer."\n',
        "answer = text.split('</think>')[-1]\n",
        'PROMPT = """\n<think>\n...\n</think>\n"""\n',
        'PROMPT = """\n{}\n</think>\n"""\n',
    ],
    ids=["pair", "end", "lines", "lone-line"],
)
@pytest.mark.parametrize("before", ["", "<think>Which tags? {}</think>\n", "Which tags?\n</think>\n\n"])
def test_code_about_thinking_tags_arrives_as_it_was_written(code: str, before: str) -> None:
    script = read_answer(Script, f'{before}{{"changes": "tags"}}\n```python\n{code}```')
    assert (script.code, script.changes) == (code, "tags")


def test_of_reasoning_that_only_ends_nothing_is_taken_for_the_answer() -> None:
    text = f'First {{"hypothesis": "fewer steps"}}? No.\n</think>\n\n{IDEA}'
    assert read_answer(Idea, text).hypothesis == "more steps"
    with pytest.raises(Unreadable, match="method"):
        read_answer(Idea, 'Hm.\n</think>\n{"hypothesis": "a", "method": "DPO"}')


@pytest.mark.parametrize("stated", ["", "train.py", "see below", None])
def test_a_field_that_only_points_at_the_fence_does_not_replace_it(stated: str | None) -> None:
    text = json.dumps({"changes": "lr", "code": stated}) + "\n```python\nprint(1 + 1)\n```"
    assert read_answer(Script, text).code == "print(1 + 1)\n"
