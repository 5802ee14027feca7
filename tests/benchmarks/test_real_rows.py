"""The tasks of the seeds on real rows: counts, gold, and nothing in two splits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from posttrain.benchmarks.mbpp_rows import as_humaneval
from posttrain.benchmarks.prepare import TaskData, prepare_task
from posttrain.benchmarks.prompts import exemplar_rows
from posttrain.benchmarks.registry import BUILT_IN, TaskRegistry
from posttrain.core.paths import LabPaths
from posttrain.core.scores import Item, Output
from posttrain.evaluators.scorer import score
from posttrain.evaluators.selfcheck import scoring_job, self_check
from posttrain.infra.datasets import TaskSource
from posttrain.infra.files import read_jsonl
from posttrain.infra.processes import Spawner
from posttrain.infra.sources import Sources

COUNTS = [
    ("gsm8k", "holdout", 6973, 500, 1319),
    ("gsm8k:4shot", "holdout", 6973, 500, 1319),
    ("gsm8k", "open", 7473, 0, 1319),
    ("humaneval", "holdout", 374, 200, 164),
    ("humaneval", "open", 82, 0, 82),
    ("mbpp", "holdout", 374, 90, 500),
    ("bbh", "holdout", 2605, 1302, 2604),
    ("math500", "holdout", 0, 100, 400),
    ("aime24", "holdout", 0, 30, 30),
    ("aime25", "holdout", 0, 30, 30),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> LabPaths:
    return LabPaths(tmp_path_factory.mktemp("home"))


def prepared(task: str, home: LabPaths, data: Path, protocol: str = "holdout") -> TaskData:
    spec = TaskRegistry().load(task)
    source = TaskSource(spec.name, home, Sources(data=(data,)), offline=True, progress=lambda line: None)
    with Spawner() as spawner:
        return prepare_task(spec, lab=home, source=source, spawner=spawner, protocol=protocol)


@pytest.mark.parametrize(("task", "protocol", "visible", "val", "test"), COUNTS)
def test_the_splits_have_the_promised_sizes(
    task: str, protocol: str, visible: int, val: int, test: int, home: LabPaths, shared_data: Path
) -> None:
    data = prepared(task, home, shared_data, protocol)
    assert (data.visible_rows, len(data.val), len(data.test)) == (visible, val, test)
    assert data.notes == ()
    rows = read_jsonl(data.visible / "train.jsonl") if visible else ()
    texts = [{" ".join(row["question"].split()) for row in rows}]
    texts += [{" ".join(i.fields["question"].split()) for i in items} for items in (data.val, data.test)]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]


@pytest.mark.parametrize("task", ["gsm8k", "gsm8k:4shot", "bbh", "bbh:cot"])
def test_gold_scores_100_and_silence_0(task: str, home: LabPaths, shared_data: Path) -> None:
    check = self_check(TaskRegistry().load(task), prepared(task, home, shared_data).test, score=score)
    assert (check.gold, check.empty) == (100.0, 0.0)


@pytest.mark.parametrize("task", ["aime24", "aime25"])
def test_mean_at_k_of_gold_is_100(task: str, home: LabPaths, shared_data: Path) -> None:
    pytest.importorskip("math_verify")
    check = self_check(TaskRegistry().load(task), prepared(task, home, shared_data).test, score=score)
    assert (check.gold, check.empty) == (100.0, 0.0)


@pytest.mark.slow
def test_every_gold_answer_of_math500_equals_itself(home: LabPaths, shared_data: Path) -> None:
    pytest.importorskip("math_verify")
    check = self_check(
        TaskRegistry().load("math500"), prepared("math500", home, shared_data).test, score=score
    )
    assert (check.gold, check.empty) == (100.0, 0.0)


def passed(task: str, items: tuple[Item, ...]) -> list[str]:
    outputs = [Output(text=item.fields["answer"], tokens=1) for item in items]
    made = score(scoring_job(TaskRegistry().load(task), items, outputs))
    return [
        f"{item.fields['task_id']}: {result.reason}"
        for item, result in zip(items, made.items, strict=True)
        if result.value < 1
    ]


def test_canonical_programs_pass(home: LabPaths, shared_data: Path) -> None:
    data = prepared("humaneval", home, shared_data)
    assert passed("humaneval", (*data.test[::8], *data.val[::20])) == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["humaneval", "mbpp"])
def test_all_canonical_programs_pass(task: str, home: LabPaths, shared_data: Path) -> None:
    data = prepared(task, home, shared_data)
    assert passed(task, (*data.val, *data.test)) == []


def test_bbh_has_27_subtasks_in_fixed_shares(home: LabPaths, shared_data: Path) -> None:
    data = prepared("bbh", home, shared_data)
    counts = Counter(item.stratum for item in data.test)
    assert len(counts) == 27
    assert counts["boolean_expressions"] == 100
    assert len({item.stratum for item in data.test[:27]}) == 27


def test_exemplars_are_training_rows_and_in_no_held_out_split(home: LabPaths, shared_data: Path) -> None:
    exemplars = {" ".join(row["question"].split()) for row in exemplar_rows(BUILT_IN / "gsm8k")}
    train = {" ".join(row["question"].split()) for row in read_jsonl(shared_data / "gsm8k" / "train.jsonl")}
    data = prepared("gsm8k", home, shared_data)
    assert len(exemplars) == 4
    assert exemplars <= train
    assert not exemplars & {" ".join(item.fields["question"].split()) for item in (*data.val, *data.test)}


def test_mbpp_in_humanevals_form_is_a_head_and_a_body() -> None:
    row = as_humaneval(
        {
            "task_id": 3,
            "text": "Write a function to add one.",
            "code": "BASE = 1\r\ndef add(x):\r\n  return helper(x)\r\ndef helper(x):\r\n  return x+BASE",
            "test_list": ["assert add(1) == 2"],
            "test_setup_code": "",
        }
    )
    assert row["entry_point"] == "add"
    assert row["prefix"].endswith(
        'def add(x):\n    """Write a function to add one.\n    >>> add(1) == 2\n    """\n'
    )
    assert "def helper(x):" in row["prefix"]
    assert row["answer"] == "    return helper(x)\n"
    compile(row["prefix"] + row["answer"], "program", "exec")
