"""What the tool finds in its folder, and which configurations it can be asked for."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from posttrain.benchmarks.registry import TaskRegistry
from posttrain.core.errors import PluginError, UsageError
from posttrain.core.paths import LabPaths
from posttrain.core.scores import Item
from posttrain.evaluators.opencompass.inputs import Asked, Dataset, Endpoint, find_config, write_inputs
from posttrain.evaluators.opencompass.settings import OpenCompassSettings, config_name, read_settings
from posttrain.testing.fake_opencompass import install_fake_opencompass

ITEMS = tuple(
    Item(id=str(n), fields={"question": f"{n}？", "answer": "1"}, stratum="ab"[n % 2]) for n in range(4)
)


def asked(settings: Mapping[str, Any]) -> Asked:
    return Asked(
        dataset=Dataset("opencompass.configs.datasets.gsm8k.gsm8k_gen", ("gsm8k_datasets",)),
        settings=OpenCompassSettings.model_validate(settings),
        items=ITEMS,
        exemplars=({"question": "shown", "answer": "1"},),
        endpoint=Endpoint("http://127.0.0.1:8000/v1", "key'\"\\"),
        wave=4,
        max_new_tokens=32,
        temperature=0.0,
        timeout_s=60,
    )


def test_rows_lie_where_the_configuration_reads_them(tmp_path: Path) -> None:
    files = {"data/x/test.jsonl": "items", "data/x/b.jsonl": "items/b", "data/x/train.jsonl": "exemplars"}
    write_inputs(asked({"files": files}), tmp_path)
    rows = {
        name: [
            json.loads(line)["question"]
            for line in (tmp_path / "cache" / name).read_text("utf-8").split("\n")[:-1]
        ]
        for name in files
    }
    assert rows["data/x/test.jsonl"] == ["0？", "1？", "2？", "3？"]
    assert rows["data/x/b.jsonl"] == ["1？", "3？"]
    assert rows["data/x/train.jsonl"] == ["shown"]


def test_the_configuration_is_python_whatever_stands_in_names(tmp_path: Path) -> None:
    write_inputs(asked({"files": {"x.jsonl": "items"}}), tmp_path)
    tree = ast.parse((tmp_path / "config.py").read_text("utf-8"))
    assert any(isinstance(node, ast.Constant) and node.value == "key'\"\\" for node in ast.walk(tree))


def test_a_stratum_without_items_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="stratum 'c'"):
        write_inputs(asked({"files": {"x.jsonl": "items/c"}}), tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"files": {}},
        {"files": {"../x.jsonl": "items"}},
        {"files": {"/etc/x.jsonl": "items"}},
        {"files": {"x.jsonl": "gold"}},
        {"files": {"x.jsonl": "items"}, "unknown": 1},
        {"files": {"x.jsonl": "items"}, "subsets": {"one": "a", "two": "a"}},
    ],
)
def test_settings_that_make_no_sense_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match=r"mine: evaluator_settings\."):
        read_settings(settings, where="mine")


def test_a_configuration_is_a_name_or_a_module_path() -> None:
    module = "opencompass.configs.datasets.gsm8k.gsm8k_gen"
    assert config_name(f"opencompass:{module}") == module
    with pytest.raises(PluginError):
        config_name("opencompass:../gsm8k")


def test_a_configuration_that_imports_another_one_is_found(lab: LabPaths) -> None:
    package = install_fake_opencompass(lab) / "packages" / "opencompass"
    found = find_config(package, "gsm8k_gen")
    assert found == Dataset("opencompass.configs.datasets.gsm8k.gsm8k_gen", ("gsm8k_datasets",))
    with pytest.raises(UsageError, match="Similar ones: gsm8k_gen"):
        find_config(package, "gsm8k_nothing")


def test_a_configuration_is_a_task_on_the_rows_of_ours() -> None:
    tasks = TaskRegistry()
    spec, ours = tasks.load("opencompass:gsm8k_gen_1d7fe4"), tasks.load("gsm8k:4shot")
    assert (spec.id, spec.data_name) == ("opencompass:gsm8k_gen_1d7fe4", "gsm8k")
    assert (spec.splits, spec.prompt, spec.generation) == (ours.splits, ours.prompt, ours.generation)
    other = tasks.load("opencompass:gsm8k_0shot_v2_gen_17d799")
    assert other.prompt.few_shot is None
    with pytest.raises(UsageError, match="gsm8k_"):
        tasks.load("opencompass:hellaswag_gen")
    with pytest.raises(UsageError, match="followed by a configuration"):
        tasks.load("opencompass:")


def test_a_task_folder_that_does_not_say_where_rows_go_is_listed_as_broken(tmp_path: Path) -> None:
    for name, more in {
        "one": "",
        "two": "evaluator_settings: {files: {a.jsonl: items}}\ngeneration: {samples: 2}",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "benchmark.yaml").write_text(f"title: t\nevaluator: opencompass:x_gen\n{more}\n")
    broken = TaskRegistry((tmp_path,)).broken()
    assert "evaluator_settings.files" in broken["one"]
    assert "generation.samples" in broken["two"]


def test_a_smith_folder_of_an_unknown_configuration_says_where_rows_go(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    text = "name: mine\neval_mode: opencompass\nopencompass_dataset: mine_gen\n"
    (folder / "config.yaml").write_text(text)
    tasks = TaskRegistry(smith_root=tmp_path)
    assert "opencompass_files" in tasks.broken()["smith-mine"]
    (folder / "config.yaml").write_text(text + "opencompass_files: {data/mine.jsonl: items}\n")
    assert tasks.load("smith-mine").evaluator_settings["files"] == {"data/mine.jsonl": "items"}


def test_configurations_of_one_name_are_told_apart_by_their_modules(lab: LabPaths) -> None:
    """OpenCompass ships mgsm_gen.py and mmmlu_gen.py twice, with different data sets."""
    package = install_fake_opencompass(lab) / "packages" / "opencompass"
    other = package / "configs" / "datasets" / "another"
    other.mkdir()
    (other / "gsm8k_gen.py").write_text("other_datasets = []\n")
    with pytest.raises(
        UsageError, match=r"another\.gsm8k_gen, opencompass\.configs\.datasets\.gsm8k\.gsm8k_gen"
    ):
        find_config(package, "gsm8k_gen")
    for name in ("another.gsm8k_gen", "opencompass.configs.datasets.another.gsm8k_gen"):
        assert find_config(package, name).lists == ("other_datasets",)
    with pytest.raises(UsageError, match=r"no configuration 'nowhere\.gsm8k_gen'"):
        find_config(package, "nowhere.gsm8k_gen")
