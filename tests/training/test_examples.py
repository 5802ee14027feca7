"""Rows become batches of like length, each row once an epoch."""

from __future__ import annotations

import itertools

import pytest

from posttrain.training.examples import Example, Row, batches, shared_prefix, split_by_tokens


def render(row: Row) -> tuple[list[int], list[int]]:
    return [1, 2, *([3] * row["n"]), 4], [5, 6]


ROWS = [{"n": n} for n in range(40)]


def taken(count: int, **options: int) -> list[tuple[Example, ...]]:
    settings = {"size": 8, "seed": 0, "max_length": 100, **options}
    return list(itertools.islice(batches(ROWS, render, **settings), count))


def test_an_epoch_holds_every_row_once() -> None:
    lengths = [len(example.prompt) for batch in taken(5) for example in batch]
    assert sorted(lengths) == [n + 3 for n in range(40)]


def test_a_batch_holds_rows_of_like_length() -> None:
    for batch in taken(5):
        lengths = sorted(example.length for example in batch)
        assert lengths == list(range(lengths[0], lengths[0] + 8))


def test_the_seed_decides_the_order_and_epochs_differ() -> None:
    assert taken(10) == taken(10)
    assert taken(5) != taken(5, seed=1)
    assert taken(10)[:5] != taken(10)[5:]


def test_rows_are_rendered_when_they_are_needed() -> None:
    seen: list[int] = []

    def watched(row: Row) -> tuple[list[int], list[int]]:
        seen.append(row["n"])
        return render(row)

    next(batches(ROWS, watched, size=4, seed=0, max_length=100, pool=2))
    assert len(seen) == 8


def test_rows_that_are_too_long_or_empty_are_left_out() -> None:
    assert {example.length for batch in taken(2, max_length=10) for example in batch} <= set(range(5, 11))
    with pytest.raises(ValueError, match="none of 40 rows"):
        taken(1, max_length=4)
    with pytest.raises(ValueError, match="no rows"):
        next(batches([], render, size=4, seed=0, max_length=10))
    with pytest.raises(ValueError, match="none of 40 rows"):
        next(batches(ROWS, lambda row: ([1], []), size=4, seed=0, max_length=10))


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([(1, 2, 3), (1, 2, 4)], 2),
        ([(1, 2, 3), (1, 2, 3)], 2),  # the last prompt token predicts the answer: it stays with its row
        ([(1, 2), (1, 2, 3)], 1),
        ([(1,), (1, 2)], 0),
        ([(1, 2), (3, 2)], 0),
    ],
)
def test_the_shared_prefix_leaves_each_prompt_its_last_token(
    prompts: list[tuple[int, ...]], expected: int
) -> None:
    assert shared_prefix([Example(prompt, (9,)) for prompt in prompts]) == expected


def test_a_large_batch_is_cut_by_padded_tokens() -> None:
    batch = tuple(Example((1,) * length, (2,)) for length in (9, 1, 4, 9))
    parts = split_by_tokens(batch, prefix=0, max_tokens=20)
    assert [[example.length for example in part] for part in parts] == [[2, 5], [10, 10]]
    assert [len(part) for part in split_by_tokens(batch, prefix=0, max_tokens=1)] == [1, 1, 1, 1]
