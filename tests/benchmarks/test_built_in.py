"""The procedural tasks: space, splits, gold."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import ModuleType

import pytest

from posttrain.benchmarks.prepare import TaskData, prepare_task
from posttrain.benchmarks.prepare_worker import load_module
from posttrain.benchmarks.registry import BUILT_IN, TaskRegistry
from posttrain.benchmarks.splits import PUBLIC_KEY, bucket
from posttrain.core.paths import LabPaths
from posttrain.evaluators.scorer import score
from posttrain.evaluators.selfcheck import self_check
from posttrain.infra.files import read_jsonl
from posttrain.infra.processes import Spawner

from .folders import ListedSource

PROCEDURAL = ("boolean", "arithmetic")
DRAWN = 20_750


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> LabPaths:
    return LabPaths(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def boolean() -> ModuleType:
    return load_module(BUILT_IN / "boolean" / "data.py")


def drawn(task: str, home: LabPaths, salt: str = "public") -> TaskData:
    with Spawner() as spawner:
        return prepare_task(
            TaskRegistry().load(task), lab=home, source=ListedSource(), spawner=spawner, salt=salt
        )


@pytest.mark.parametrize("task", PROCEDURAL)
def test_the_splits_have_their_sizes_and_share_no_row(task: str, home: LabPaths) -> None:
    data = drawn(task, home)
    visible = {row["question"] for row in read_jsonl(data.visible / "train.jsonl")}
    val = {item.fields["question"] for item in data.val}
    test = {item.fields["question"] for item in data.test}
    assert (len(visible), len(val), len(test)) == (20_000, 250, 500)
    assert not visible & val
    assert not visible & test
    assert not val & test


def test_test_rows_lie_in_bucket_0_and_validation_rows_in_bucket_1(home: LabPaths) -> None:
    data = drawn("boolean", home)
    assert {bucket(item.fields["question"], PUBLIC_KEY) for item in data.test} == {0}
    assert {bucket(item.fields["question"], PUBLIC_KEY) for item in data.val} == {1}
    visible = read_jsonl(data.visible / "train.jsonl")
    assert {bucket(row["question"], PUBLIC_KEY) for row in visible} == set(range(2, 10))


@pytest.mark.parametrize("task", PROCEDURAL)
def test_a_private_salt_draws_other_hidden_rows(task: str, home: LabPaths) -> None:
    public = {item.id for item in drawn(task, home).test}
    private = {item.id for item in drawn(task, home, "private").test}
    assert len(public & private) < 100


@pytest.mark.parametrize("task", PROCEDURAL)
def test_gold_scores_100_and_silence_0(task: str, home: LabPaths) -> None:
    check = self_check(TaskRegistry().load(task), drawn(task, home).test, score=score)
    assert (check.gold, check.empty, check.n) == (100.0, 0.0, 500)


@pytest.mark.parametrize("task", PROCEDURAL)
def test_a_limit_takes_every_length_in_turn(task: str, home: LabPaths) -> None:
    strata = {item.stratum for item in drawn(task, home).test}
    assert {item.stratum for item in drawn(task, home).test[: len(strata)]} == strata


def test_the_space_of_expressions_is_twenty_times_what_is_drawn(boolean: ModuleType) -> None:
    assert sum(map(boolean.expressions, boolean.LENGTHS)) - 250 >= 20 * DRAWN


def test_all_expressions_of_a_length_can_be_drawn(boolean: ModuleType) -> None:
    import random

    rng = random.Random(0)
    assert len({" ".join(boolean.expression(rng, 5)) for _ in range(3000)}) == boolean.expressions(5)


def test_answers_are_pythons_own(boolean: ModuleType) -> None:
    for question, row in itertools.islice(boolean.candidates(5), 300):
        assert row["answer"] == str(eval(question.removesuffix(" is")))


def test_labels_are_as_unbalanced_as_in_bbh(boolean: ModuleType) -> None:
    answers = [row["answer"] for _, row in itertools.islice(boolean.candidates(7), 4000)]
    assert answers.count("True") / len(answers) == pytest.approx(0.54, abs=0.03)


def test_no_row_of_bbh_can_be_drawn(boolean: ModuleType, shared_data: Path, home: LabPaths) -> None:
    examples = json.loads((shared_data / "bbh" / "boolean_expressions.json").read_text())["examples"]
    listed = (BUILT_IN / "boolean" / "excluded.txt").read_text().split()
    assert {boolean.fingerprint(example["input"]) for example in examples} == set(listed)
    data = drawn("boolean", home)
    rows = [*read_jsonl(data.visible / "train.jsonl"), *(item.fields for item in (*data.val, *data.test))]
    questions = {" ".join(row["question"].split()) for row in rows}
    assert not questions & {" ".join(example["input"].split()) for example in examples}


def test_expressions_of_bbhs_length_look_like_bbhs(boolean: ModuleType, shared_data: Path) -> None:
    import random

    examples = json.loads((shared_data / "bbh" / "boolean_expressions.json").read_text())["examples"]
    rng = random.Random(2)
    ours = [boolean.expression(rng, 8) for _ in range(2000)]
    theirs = [example["input"].split()[:-1] for example in examples]
    for symbol in ("not", "and", "or", "(", "True"):
        share = sum(e.count(symbol) for e in ours) / len(ours)
        assert share == pytest.approx(sum(e.count(symbol) for e in theirs) / len(theirs), rel=0.25)


def test_a_sum_and_its_mirror_image_stay_together() -> None:
    arithmetic = load_module(BUILT_IN / "arithmetic" / "data.py")
    homes: dict[str, str] = {}
    for canonical, row in itertools.islice(arithmetic.candidates(1), 20_000):
        left, operator, right, _ = row["question"].split()
        assert row["answer"] == str(eval(f"{left} {operator} {right}"))
        if operator == "+":
            assert homes.setdefault(" ".join(sorted((left, right))), canonical) == canonical


def test_two_digit_rows_are_over_weighted(home: LabPaths) -> None:
    strata = [item.stratum for item in drawn("arithmetic", home).test]
    assert strata.count("2 digits") > 220
    assert set(strata) == {"1 digit", "2 digits", "3 digits", "4 digits"}
