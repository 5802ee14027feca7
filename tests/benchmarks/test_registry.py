"""Tasks are folders: found, resolved, and faults told in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.benchmarks.registry import TaskRegistry, merge
from posttrain.core.errors import PluginError, UsageError

from .folders import task_folder


def test_the_tasks_that_ship_are_all_usable() -> None:
    registry = TaskRegistry()
    assert {"boolean", "arithmetic"} <= set(registry.names())
    assert registry.broken() == {}


def test_a_folder_is_a_task(tmp_path: Path) -> None:
    task_folder(tmp_path, prompt={"template": "{question}?"})
    spec = TaskRegistry([tmp_path]).load("quiz")
    assert spec.id == spec.name == "quiz"
    assert spec.prompt.template == "{question}?"
    assert spec.folder == tmp_path / "quiz"


def test_the_earlier_root_wins(tmp_path: Path) -> None:
    task_folder(tmp_path / "a", title="first")
    task_folder(tmp_path / "b", title="second")
    assert TaskRegistry([tmp_path / "a", tmp_path / "b"]).load("quiz").title == "first"


def test_a_root_that_does_not_exist_holds_no_tasks(tmp_path: Path) -> None:
    assert TaskRegistry([tmp_path / "nowhere"]).names() == ()


def test_a_variant_is_merged_at_every_depth(tmp_path: Path) -> None:
    task_folder(
        tmp_path,
        prompt={"template": "{question}", "style": "plain"},
        generation={"max_new_tokens": 9, "stop": ["x"]},
        variants={"long": {"generation": {"max_new_tokens": 99}}, "same": None},
    )
    registry = TaskRegistry([tmp_path])
    spec = registry.load("quiz:long")
    assert (spec.id, spec.name, spec.variant) == ("quiz:long", "quiz", "long")
    assert spec.generation.max_new_tokens == 99
    assert spec.generation.stop == ("x",)
    assert spec.prompt.style == "plain"
    assert registry.variants("quiz") == ("long", "same")
    assert registry.load("quiz:same").generation.max_new_tokens == 9


def test_merge_replaces_lists_and_keeps_what_is_not_named() -> None:
    assert merge({"a": [1], "b": {"c": 1, "d": 2}}, {"a": [2], "b": {"c": 3}}) == {
        "a": [2],
        "b": {"c": 3, "d": 2},
    }


@pytest.mark.parametrize("name", ["quizz", "../quiz", "/etc", "", "quiz/../quiz", ".", "quiz\x00"])
def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path, name: str) -> None:
    task_folder(tmp_path)
    with pytest.raises(UsageError, match="Known: quiz"):
        TaskRegistry([tmp_path]).load(name)


@pytest.mark.parametrize("variant", ["short", "", "../x"])
def test_an_unknown_variant_is_answered_with_the_known_ones(tmp_path: Path, variant: str) -> None:
    task_folder(tmp_path, variants={"long": {}})
    with pytest.raises(UsageError, match="Its variants: long"):
        TaskRegistry([tmp_path]).load(f"quiz:{variant}")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"evaluater": "numeric"}, r"quiz/benchmark.yaml: evaluater: there is no such field"),
        # a misspelt field that is needed is missing as well: its own name is told
        ({"titel": "Quiz", "title": None}, r"benchmark.yaml: titel: there is no such field"),
        ({"evaluator": None, "evaluatr": "numeric"}, r"benchmark.yaml: evaluatr: there is no such field"),
        ({"generation": {"max_new_tokens": 0}}, r"quiz/benchmark.yaml: generation.max_new_tokens: .*greater"),
        ({"splits": {"val": {"from": "train", "share": 2}}}, r"splits.val.share: .*less than 1"),
        ({"metric": {"direction": "up"}}, r"metric.direction: .*'maximize'"),
        ({"id": "other"}, r"id is not a field"),
        ({"folder": "/etc"}, r"folder is not a field"),
        ({"expose": ["../secret"]}, r"expose: '../secret' lies outside"),
        ({"expose": ["absent.txt"]}, r"expose: no file 'absent.txt'"),
        ({"prompt": {"few_shot": "/etc/passwd"}}, r"prompt.few_shot: '/etc/passwd' lies outside"),
        ({"variants": ["long"]}, r"variants: a mapping"),
        ({"variants": {"../x": {}}}, r"variants: '../x' is not a name"),
        ({"variants": {"bad": {"evaluator": 3}}}, r"evaluator: .*string"),
        ({"evaluator": "own"}, r"evaluator: own needs a file eval.py"),
    ],
)
def test_a_fault_is_told_in_one_line_with_file_and_field(tmp_path: Path, fields: dict, said: str) -> None:
    task_folder(tmp_path, **fields)
    task_folder(tmp_path, "sound")
    registry = TaskRegistry([tmp_path])
    broken = registry.broken()
    assert set(broken) == {"quiz"}
    assert "\n" not in broken["quiz"]
    with pytest.raises(PluginError, match=said):
        raise PluginError(broken["quiz"])
    assert registry.load("sound").id == "sound"


def test_yaml_that_is_none_is_told_with_its_line(tmp_path: Path) -> None:
    folder = task_folder(tmp_path)
    (folder / "benchmark.yaml").write_text("title: Quiz\nevaluator: [numeric\n", "utf-8")
    with pytest.raises(UsageError, match=r"--task quiz is broken: quiz/benchmark.yaml:\d: not YAML"):
        TaskRegistry([tmp_path]).load("quiz")


def test_a_manifest_that_is_a_list_is_refused(tmp_path: Path) -> None:
    (task_folder(tmp_path) / "benchmark.yaml").write_text("- a\n", "utf-8")
    with pytest.raises(UsageError, match="a mapping of fields is expected, not list"):
        TaskRegistry([tmp_path]).load("quiz")


def test_listing_runs_no_code_of_a_folder(tmp_path: Path) -> None:
    task_folder(tmp_path, data="raise SystemExit('ran')")
    registry = TaskRegistry([tmp_path])
    assert registry.names() == ("quiz",)
    assert registry.broken() == {}
