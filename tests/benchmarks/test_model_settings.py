"""models.yaml: exact name, then the longest beginning, then the default; only where a task asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.benchmarks.model_settings import ModelTable, read_table, with_model_settings
from posttrain.core.errors import UsageError
from posttrain.core.specs import TaskSpec

TABLE = ModelTable.model_validate(
    {
        "default": {"temperature": 0.0, "top_p": 0.9},
        "models": {
            "org/model": {"temperature": 0.5},
            "org/model-large": {"top_k": 5},
            "org": {"temperature": 0.9},
            "gpt-2": {"temperature": 0.8},
        },
    }
)


def task(**generation: object) -> TaskSpec:
    return TaskSpec.model_validate(
        {"id": "t", "folder": "/t", "title": "t", "evaluator": "numeric", "generation": generation}
    )


def test_the_exact_name_wins_over_a_longer_beginning() -> None:
    assert TABLE.settings("org/model").temperature == 0.5


def test_without_its_own_entry_the_longest_beginning_counts() -> None:
    found = TABLE.settings("org/model-large-instruct")
    assert (found.top_k, found.temperature, found.top_p) == (5, 0.0, 0.9)


def test_a_short_name_governs_only_itself() -> None:
    assert TABLE.settings("org/other").temperature == 0.0
    assert TABLE.settings("gpt-2-medium").temperature == 0.0
    assert TABLE.settings("gpt-2").temperature == 0.8


def test_a_task_that_does_not_ask_is_left_alone() -> None:
    assert with_model_settings(task(temperature=0.2), "org/model", TABLE).generation.temperature == 0.2


def test_a_task_that_asks_gets_the_models_settings_but_keeps_its_limit() -> None:
    asked = with_model_settings(task(per_model=True, max_new_tokens=64), "org/model", TABLE)
    assert (asked.generation.temperature, asked.generation.max_new_tokens) == (0.5, 64)


def test_the_limit_of_a_model_counts_where_the_task_states_none() -> None:
    table = ModelTable.model_validate({"models": {"org/model": {"max_out_len": 4096}}})
    assert with_model_settings(task(per_model=True), "org/model", table).generation.max_new_tokens == 4096


def test_thinking_is_a_switch_of_the_template() -> None:
    table = ModelTable.model_validate({"models": {"org/model": {"enable_thinking": True}}})
    asked = with_model_settings(task(per_model=True), "org/model", table)
    assert asked.prompt.chat_template_kwargs == {"enable_thinking": True}


def test_the_operators_file_is_laid_over_the_one_that_ships(tmp_path: Path) -> None:
    own = tmp_path / "models.yaml"
    own.write_text(
        "default: {top_p: 0.5}\nmodels:\n  org/模型: {temperature: 0.7, batch_size: 16}\n", "utf-8"
    )
    table = read_table(own)
    assert table.settings("org/模型").temperature == 0.7
    assert table.settings("Qwen/Qwen3-8B-Base").top_k == 20
    assert table.settings("another").top_p == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "default: {temperature: -1}",
        "models: {a/b: {temprature: 1}}",
        "models: [a]",
        "[]",
        "default: {tensor_parallel_size: 4}",
        "default: {tensor_parallel_size: yes}",
        "default: {temperature: [",
        "default: {temperature: .inf}",
        "default: {temperature: .nan}",
        "default: {temperature: yes}",
        "default: {repetition_penalty: .inf}",
        "default: {top_k: on}",
        "default: {top_k: 99999999999999999999}",
        "default: {max_new_tokens: 100000000000000000000000}",
        "default: {max_new_tokens: 5, max_out_len: 7}",
        "default: &a {x: *a}",
        pytest.param("models: " + "[" * 3000, id="nested"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_field(tmp_path: Path, text: str) -> None:
    own = tmp_path / "models.yaml"
    own.write_text(text)
    with pytest.raises(UsageError, match=r"models\.yaml"):
        read_table(own)
