"""The choice of the next token."""

from __future__ import annotations

import random

import pytest

from posttrain.core.specs import GenerationSettings

torch = pytest.importorskip("torch")


def sampler(**settings: float):
    from posttrain.engines.sampling import Sampler

    return Sampler(GenerationSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("vocabulary", [259, 512])
def test_greedy_takes_the_first_of_the_largest(vocabulary: int) -> None:
    logits = torch.randn(5, vocabulary).round(decimals=1)
    chosen = sampler().choose(logits, seen=None, generators=[])
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert chosen.tolist() == expected


def draws(logits: list[float], count: int = 4000, **settings: float) -> list[float]:
    table = torch.tensor([logits]).expand(count, -1)
    generators = [random.Random(number) for number in range(count)]
    chosen = sampler(temperature=1.0, **settings).choose(table, seen=None, generators=generators)
    return [float((chosen == token).float().mean()) for token in range(len(logits))]


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    expected = torch.tensor(logits).softmax(0).tolist()
    assert draws(logits) == pytest.approx(expected, abs=0.03)


def test_top_k_leaves_the_k_most_likely() -> None:
    shares = draws([0.0, 1.0, 2.0, -1.0], top_k=2)
    assert shares[0] == shares[3] == 0
    assert shares[2] == pytest.approx(0.731, abs=0.03)


def test_top_p_leaves_the_smallest_set_that_reaches_p() -> None:
    shares = draws([0.0, 1.0, 2.0, -1.0], top_p=0.7)
    assert shares[0] == shares[3] == 0
    assert shares[1] > 0.2


def test_a_penalty_lowers_only_what_was_seen() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0]])
    seen = torch.tensor([[True, False, True]])
    chosen = sampler(repetition_penalty=1.2).choose(logits, seen=seen, generators=[])
    assert chosen.tolist() == [1]


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-6])
def test_next_to_no_temperature_is_none(temperature: float) -> None:
    """Logits divided by it are not finite, and a draw from those is any token at all."""
    logits = torch.tensor([[1.0, 9.0, 8.9, -3.0]])
    chosen = sampler(temperature=temperature).choose(logits, seen=None, generators=[random.Random(1)])
    assert chosen.tolist() == [1]
