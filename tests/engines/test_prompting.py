"""Rows become the same tokens in the grader and in an agent's workspace."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.engine import PinnedPrompt, PromptSettings, Turn
from posttrain.core.errors import PluginError, UsageError
from posttrain.core.specs import GenerationSettings
from posttrain.engines.prompting import (
    build_turns,
    end_of_turn_id,
    fill,
    frozen_template,
    gold_text,
    plain_text,
    render_turns,
    stop_ids,
    uses_date,
)
from posttrain.prompting import Prompter, render, render_example, stop_token_ids

CHAT = PromptSettings(style="chat", template="Q: {question}", answer_template="{answer}")
PLAIN = CHAT.model_copy(update={"style": "plain"})


def tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


@pytest.mark.parametrize(
    ("template", "fields", "expected"),
    [
        ("{question}", {"question": "a {b} {{c}} %s"}, "a {b} {{c}} %s"),
        (r"Put it in \boxed{}: {question}", {"question": "1"}, r"Put it in \boxed{}: 1"),
        ("{{question}} {question}", {"question": "1"}, "{question} 1"),
        ("{n} + {m}", {"n": 1, "m": 2.5}, "1 + 2.5"),
        ("{a.b} {0} { a }", {"a": 1}, "{a.b} {0} { a }"),
    ],
)
def test_only_names_of_fields_in_braces_are_replaced(template: str, fields: dict, expected: str) -> None:
    assert fill(template, fields) == expected


def test_lists_and_objects_of_a_row_are_written_as_json() -> None:
    row = {"question": {"问": "多少？", "n": [1, True]}, "level": 3}
    assert fill("{question} ({level})", row) == '{"问": "多少？", "n": [1, true]} (3)'


def test_a_field_that_the_row_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(PluginError, match=r"asks for \{question\}; fields of the row: a, b"):
        fill("{question}", {"a": 1, "b": 2})


def test_turns_are_system_exemplars_question_in_this_order() -> None:
    shots = (Turn(role="user", content="{x}"), Turn(role="assistant", content="y"))
    settings = CHAT.model_copy(update={"system": "Be brief.", "few_shot": shots})
    turns = build_turns({"question": "1"}, settings)
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "user"]
    assert [turn.content for turn in turns] == ["Be brief.", "{x}", "y", "Q: 1"]


def test_no_system_turn_unless_the_task_states_one() -> None:
    assert [turn.role for turn in build_turns({"question": "1"}, CHAT)] == ["user"]


def test_plain_style_is_question_and_answer_lines() -> None:
    shots = (Turn(role="user", content="1+1"), Turn(role="assistant", content="2"))
    settings = PromptSettings(
        style="plain", template="{question}", answer_template="{answer}", few_shot=shots
    )
    text = plain_text(build_turns({"question": "2+2"}, settings))
    assert text == "Question: 1+1\nAnswer: 2\n\nQuestion: 2+2\nAnswer:"
    assert gold_text({"answer": 4}, settings) == " 4"


def test_chat_style_is_the_bases_template_with_the_answer_opened(tiny: Path) -> None:
    rendered = render_turns(tokenizer_of(tiny), build_turns({"question": "1"}, CHAT), CHAT)
    assert rendered.text == "<|im_start|>user\nQ: 1<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer_of(tiny).decode(rendered.token_ids) == rendered.text


def test_the_stop_set_unites_tokenizer_generation_config_and_end_of_turn(tiny: Path) -> None:
    tokenizer = tokenizer_of(tiny)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end_of_turn_id(tokenizer) == end
    assert stop_ids(tokenizer, [3, 7]) == tuple(sorted({3, 7, end, tokenizer.eos_token_id}))
    assert set(stop_ids(tokenizer, None)) == {end, tokenizer.eos_token_id}


def test_a_template_that_asks_for_the_date_gets_the_frozen_one(make_tiny: Callable[..., Path]) -> None:
    folder = make_tiny()
    tokenizer = tokenizer_of(folder)
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}|{{ messages[0]['content'] }}"
    assert uses_date(tokenizer.chat_template)
    settings = CHAT.model_copy(update={"frozen_date": "2024-07-26"})
    rendered = render_turns(tokenizer, build_turns({"question": "1"}, settings), settings)
    assert rendered.text == "26 Jul 2024|Q: 1"


def test_a_date_that_cannot_be_frozen_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be frozen"):
        frozen_template("{{ strftime_now(format) }}", "2024-07-26")


def test_switches_of_the_template_reach_it(tiny: Path) -> None:
    tokenizer = tokenizer_of(tiny)
    tokenizer.chat_template = "{{ 'on' if thinking else 'off' }}"
    settings = CHAT.model_copy(update={"chat_template_kwargs": {"thinking": True}})
    assert render_turns(tokenizer, build_turns({"question": "1"}, settings), settings).text == "on"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    pinned = PinnedPrompt(prompt=CHAT, generation=GenerationSettings(), stop_token_ids=(0, 2))
    (tmp_path / "prompt").mkdir()
    (tmp_path / "prompt" / "settings.json").write_text(pinned.model_dump_json())
    return tmp_path


def test_an_agent_renders_what_the_grader_renders(workspace: Path, tiny: Path) -> None:
    rows = [{"question": "1", "answer": "one"}, {"question": "two {x}", "answer": "2"}]
    mine = render(rows, workspace=str(workspace), model=str(tiny))
    tokenizer = tokenizer_of(tiny)
    assert mine == [render_turns(tokenizer, build_turns(row, CHAT), CHAT) for row in rows]
    assert stop_token_ids(workspace=str(workspace)) == (0, 2)


def test_a_training_pair_is_the_prompt_and_the_answer_with_its_end(workspace: Path, tiny: Path) -> None:
    row = {"question": "1", "answer": "one"}
    prompt_ids, answer_ids = render_example(row, workspace=str(workspace), model=str(tiny))
    tokenizer = tokenizer_of(tiny)
    assert tokenizer.decode(answer_ids) == "one<|im_end|>"
    assert prompt_ids == Prompter.of(workspace, tiny).render([row])[0].token_ids


def test_only_workspace_and_model_variables_are_needed(workspace: Path, tiny: Path, tmp_path: Path) -> None:
    code = "from posttrain.prompting import render; print(repr(render([{'question': '1'}])[0].text))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"WORKSPACE": str(workspace), "MODEL_PATH": str(tiny), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ast.literal_eval(done.stdout.splitlines()[-1]).startswith("<|im_start|>user\nQ: 1")


def test_outside_a_workspace_the_missing_file_is_named(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(UsageError, match=r"no pinned prompt at .*settings\.json"):
        Prompter.of(tmp_path, tiny)
