"""Lanes: equal shares, every answer once, and no silence when one dies."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence

import pytest

from posttrain.core.errors import InfrastructureError
from posttrain.core.scores import Output

pytest.importorskip("torch")

from posttrain.engines.batching import Answered, Asked, common_prefix
from posttrain.engines.lanes import deal, run_lanes


def requests(count: int) -> list[Asked]:
    return [Asked(index, (1,) * (count - index), 4, random.Random(index)) for index in range(count)]


def answer_all(asked: Sequence[Asked]) -> Iterator[Answered]:
    for one in asked:
        yield Answered(one.index, Output(text=f"{os.getpid()}", tokens=len(one.tokens)))


def collected(lanes: int, count: int, work=answer_all) -> dict[int, Output]:
    found: dict[int, Output] = {}

    def keep(answered: Answered) -> None:
        assert answered.index not in found
        found[answered.index] = answered.output

    run_lanes(requests(count), work, lanes=lanes, threads=lanes, report=keep)
    return found


def test_long_and_short_requests_are_dealt_out_in_turn() -> None:
    assert deal([9, 8, 7, 6, 5], 2) == [[9, 7, 5], [8, 6]]
    assert deal([9], 3) == [[9]]


@pytest.mark.parametrize(("lanes", "processes"), [(1, 1), (2, 2), (4, 3)])
def test_every_request_is_answered_once(lanes: int, processes: int) -> None:
    found = collected(lanes, 3)
    assert sorted(found) == [0, 1, 2]
    assert len({output.text for output in found.values()}) == processes
    assert (str(os.getpid()) in {output.text for output in found.values()}) == (lanes == 1)


def killed(asked: Sequence[Asked]) -> Iterator[Answered]:
    yield from answer_all(asked[:1])
    os.kill(os.getpid(), signal.SIGKILL)


def raising(asked: Sequence[Asked]) -> Iterator[Answered]:
    raise ValueError("broken")


@pytest.mark.parametrize("work", [killed, raising])
def test_a_lane_that_dies_is_an_error_of_the_lab(work) -> None:
    with pytest.raises(InfrastructureError, match="lane of the engine ended early"):
        collected(2, 6, work)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_shared_beginning_leaves_every_prompt_something_of_its_own() -> None:
    same = tuple(range(20))
    assert common_prefix([(*same, 1, 2), (*same, 3), (*same, 4, 5)]) == 20
    assert common_prefix([same, (*same, 1)]) == 19
    assert common_prefix([same]) == 0
    assert common_prefix([(1, 2, 3, 9), (1, 2, 3, 8)]) == 0
