"""How rows become visible, validation and test."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from posttrain.benchmarks.splits import (
    PUBLIC_KEY,
    Cut,
    bucket,
    cut,
    limited,
    order_key,
    reads_as,
    round_robin,
    split_key,
)
from posttrain.core.errors import PluginError
from posttrain.core.paths import LabPaths
from posttrain.core.specs import TaskSpec

from .folders import question_rows, texts


def spec(**fields: Any) -> TaskSpec:
    return TaskSpec.model_validate(
        {"id": "quiz", "folder": Path("/quiz"), "title": "Quiz", "evaluator": "numeric", **fields}
    )


def split(
    rows: dict[str, list[dict[str, Any]]],
    *,
    key: bytes = PUBLIC_KEY,
    protocol: str = "holdout",
    exclude: frozenset[str] = frozenset(),
    **fields: Any,
) -> Cut:
    return cut(rows, spec(**fields), key=key, protocol=protocol, exclude=exclude)


VAL_AND_TEST = {"val": {"from": "train", "size": 20}, "test": {"from": "test"}}


def test_validation_is_cut_from_train_and_missing_from_the_visible_rows() -> None:
    done = split({"train": question_rows(100), "test": question_rows(30, start=500)}, splits=VAL_AND_TEST)
    visible, val = texts(done.visible), texts(item.fields for item in done.val)
    assert (len(visible), len(val), len(done.test)) == (80, 20, 30)
    assert not set(visible) & set(val)


def test_the_order_of_the_file_changes_nothing() -> None:
    rows = question_rows(100)
    one = split({"train": rows, "test": question_rows(5, start=500)}, splits=VAL_AND_TEST)
    two = split({"train": rows[::-1], "test": question_rows(5, start=500)}, splits=VAL_AND_TEST)
    assert one == two


def test_the_order_is_the_keyed_hash_of_the_canonical_row() -> None:
    rows = question_rows(50)
    done = split({"train": rows}, splits={"val": {"from": "train", "size": 10}})
    expected = sorted(rows, key=lambda row: order_key(row, PUBLIC_KEY))[:10]
    assert [item.fields for item in done.val] == expected


def test_another_key_gives_another_split() -> None:
    rows = {"train": question_rows(100), "test": question_rows(30, start=500)}
    public = split(rows, splits=VAL_AND_TEST)
    private = split(rows, splits=VAL_AND_TEST, key=bytes(32))
    assert {item.id for item in public.val} != {item.id for item in private.val}


def test_open_shows_the_whole_train_file() -> None:
    rows = {"train": question_rows(100), "test": question_rows(30, start=500)}
    done = split(rows, splits=VAL_AND_TEST, protocol="open")
    assert (len(done.visible), len(done.val), len(done.test)) == (100, 0, 30)


def test_open_may_use_other_files() -> None:
    rows = {name: question_rows(10, start=100 * at) for at, name in enumerate(("train", "test", "a", "b"))}
    rules = {**VAL_AND_TEST, "val": None, "open": {"train": {"from": "a"}, "test": {"from": "b"}}}
    done = split(rows, splits=rules, protocol="open")
    assert texts(done.visible)[0] in texts(rows["a"])
    assert {item.fields["question"] for item in done.test} == set(texts(rows["b"]))


def test_two_held_out_splits_may_share_a_file() -> None:
    rules = {"train": None, "val": {"from": "test", "size": 10}, "test": {"from": "test", "size": 40}}
    done = split({"test": question_rows(50)}, splits=rules)
    assert done.visible == ()
    assert len({item.id for item in (*done.val, *done.test)}) == 50


def test_without_rules_and_with_a_test_file_a_tenth_of_train_is_validation() -> None:
    done = split({"train": question_rows(70), "test": question_rows(5, start=500)})
    assert (len(done.visible), len(done.val), len(done.test)) == (63, 7, 5)


def test_without_rules_and_test_file_it_is_sixty_twenty_twenty() -> None:
    done = split({"train": question_rows(50)})
    assert (len(done.visible), len(done.val), len(done.test)) == (30, 10, 10)


def test_shares_are_taken_of_every_stratum() -> None:
    rows = [{**row, "task": "ab"[n % 5 == 0]} for n, row in enumerate(question_rows(100))]
    rules = {"val": {"from": "train", "share": 0.2}, "test": {"from": "train", "share": 0.4}}
    done = split({"train": rows}, splits=rules, stratify="task")
    assert [item.stratum for item in done.test].count("b") == 8
    assert [item.stratum for item in done.val].count("a") == 16


def test_rows_that_read_the_same_stay_in_one_split() -> None:
    rows = [row for row in question_rows(60) for _ in range(2)]
    rows = [{**row, "note": at % 2} for at, row in enumerate(rows)]
    rules = {"val": {"from": "train", "size": 30}, "test": {"from": "train", "size": 30}}
    done = split({"train": rows}, splits=rules)
    visible, val, test = (
        set(texts(done.visible)),
        set(texts(item.fields for item in done.val)),
        set(texts(item.fields for item in done.test)),
    )
    assert not visible & val
    assert not visible & test
    assert not val & test
    assert len(done.val) == len(done.test) == 30


def test_a_visible_row_that_repeats_a_test_row_is_left_out_and_told() -> None:
    test = question_rows(30, start=500)
    train = [*question_rows(50), {**test[0], "question": f"  {test[0]['question']} "}]
    done = split({"train": train, "test": test}, splits={"test": {"from": "test"}})
    assert len(done.visible) == 50
    assert done.notes == ("1 of 51 visible rows left out: they repeat a validation or test row",)


def test_equal_rows_have_different_ids() -> None:
    done = split({"test": question_rows(1) * 3}, splits={"train": None, "test": {"from": "test"}})
    assert len({item.id for item in done.test}) == 3


def test_exemplars_are_never_held_out_but_stay_visible() -> None:
    rows = question_rows(40)
    exclude = frozenset(reads_as(row, "{question}") for row in rows[:20])
    done = split({"train": rows}, splits={"val": {"from": "train", "size": 15}}, exclude=exclude)
    held_out = {reads_as(item.fields, "{question}") for item in done.val}
    assert not held_out & exclude
    assert len(done.visible) == 25


def test_asking_for_more_rows_than_there_are_is_told() -> None:
    with pytest.raises(
        PluginError, match=r"train.jsonl has 5 rows left, 20 are asked for; .* leave `splits` out"
    ):
        split({"train": question_rows(5), "test": question_rows(1, start=9)}, splits=VAL_AND_TEST)


def test_a_file_that_was_not_prepared_is_told_with_those_that_were() -> None:
    with pytest.raises(PluginError, match=r"no file test.jsonl was prepared \(there are: train\)"):
        split({"train": question_rows(50)}, splits=VAL_AND_TEST)


def test_round_robin_keeps_every_prefix_balanced() -> None:
    rows = [{"task": name, "n": n} for name in "abc" for n in range(3)]
    assert [row["task"] for row in round_robin(rows, "task")[:6]] == ["a", "b", "c", "a", "b", "c"]


def test_a_limit_takes_the_first_items() -> None:
    done = split({"train": question_rows(100), "test": question_rows(30, start=500)}, splits=VAL_AND_TEST)
    assert limited(done.test, 7) == done.test[:7]
    assert limited(done.test, None) == done.test


def test_the_public_bucket_is_the_plain_hash_mod_ten() -> None:
    text = "57 + 38"
    assert bucket(text, PUBLIC_KEY) == int(blake3(text.encode()).hexdigest(), 16) % 10


def test_buckets_share_the_space_evenly() -> None:
    counts = [0] * 10
    for n in range(5000):
        counts[bucket(f"{n}", PUBLIC_KEY)] += 1
    assert min(counts) > 400


def test_a_private_salt_is_drawn_once_and_readable_to_the_owner_alone(lab: LabPaths) -> None:
    key = split_key(lab, "private")
    assert key == split_key(lab, "private") != split_key(lab, "public")
    assert len(key) == 32
    assert stat.S_IMODE(lab.salt.stat().st_mode) == 0o600


def test_a_task_that_writes_test_rows_alone_has_no_visible_ones() -> None:
    made = split({"test": question_rows(5)}, splits={"test": {"from": "test"}})
    assert (made.visible, made.val, len(made.test)) == ((), (), 5)
