"""From a task to the pinned prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.benchmarks.prompts import build_prompts, exemplar_rows, prompt_settings
from posttrain.benchmarks.registry import TaskRegistry
from posttrain.core.errors import PluginError
from posttrain.core.scores import Item

from .folders import task_folder

EXEMPLARS = "- {question: 'How much is 1 + 1?', answer: '2'}\n- {question: 'And {2 + 2}?', answer: '4'}\n"


def test_auto_follows_the_base(tmp_path: Path) -> None:
    task_folder(tmp_path)
    spec = TaskRegistry([tmp_path]).load("quiz")
    assert prompt_settings(spec, has_chat_template=True).style == "chat"
    assert prompt_settings(spec, has_chat_template=False).style == "plain"


def test_a_plain_base_may_get_a_template_of_its_own(tmp_path: Path) -> None:
    task_folder(tmp_path, prompt={"template": "Question: {question}", "plain_template": "{question}"})
    spec = TaskRegistry([tmp_path]).load("quiz")
    assert prompt_settings(spec, has_chat_template=True).template == "Question: {question}"
    assert prompt_settings(spec, has_chat_template=False).template == "{question}"


def test_exemplars_come_before_the_question_as_turns(tmp_path: Path) -> None:
    folder = task_folder(
        tmp_path,
        prompt={"template": "Q: {question}", "answer_template": "A: {answer}"},
        variants={"2shot": {"prompt": {"few_shot": "exemplars.yaml"}}},
    )
    (folder / "exemplars.yaml").write_text(EXEMPLARS, "utf-8")
    settings = prompt_settings(TaskRegistry([tmp_path]).load("quiz:2shot"), has_chat_template=True)
    item = Item(id="1", fields={"question": "Well?", "answer": "secret"})
    (prompt,) = build_prompts([item], settings)
    assert [turn.role for turn in prompt.turns] == ["user", "assistant"] * 2 + ["user"]
    assert [turn.content for turn in prompt.turns][2:] == ["Q: And {2 + 2}?", "A: 4", "Q: Well?"]


def test_a_prompt_never_holds_the_gold_answer(tmp_path: Path) -> None:
    task_folder(tmp_path)
    settings = prompt_settings(TaskRegistry([tmp_path]).load("quiz"), has_chat_template=True)
    (prompt,) = build_prompts([Item(id="1", fields={"question": "Well?", "answer": "secret"})], settings)
    assert "secret" not in prompt.model_dump_json()


def test_a_field_that_the_row_lacks_is_named(tmp_path: Path) -> None:
    task_folder(tmp_path, prompt={"template": "{problem}"})
    settings = prompt_settings(TaskRegistry([tmp_path]).load("quiz"), has_chat_template=True)
    with pytest.raises(PluginError, match="problem"):
        build_prompts([Item(id="1", fields={"question": "?"})], settings)


def test_an_exemplar_without_a_field_of_the_template_is_named_with_its_file(tmp_path: Path) -> None:
    folder = task_folder(tmp_path, prompt={"template": "{question}", "few_shot": "exemplars.yaml"})
    (folder / "exemplars.yaml").write_text("- {question: a, answer: b}\n- {quesion: a, answer: b}\n", "utf-8")
    with pytest.raises(
        PluginError, match=r"quiz/exemplars.yaml: entry 2: .*'\{question\}' asks for \{question\}"
    ):
        prompt_settings(TaskRegistry([tmp_path]).load("quiz"), has_chat_template=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1", "a list of rows"),
        ("- question: x", "entry 1: a mapping with an answer"),
        ("[", "cannot be read"),
    ],
)
def test_exemplars_that_are_none_are_told(tmp_path: Path, text: str, said: str) -> None:
    folder = task_folder(tmp_path)
    (folder / "exemplars.yaml").write_text(text, "utf-8")
    with pytest.raises(PluginError, match=said):
        exemplar_rows(folder)
