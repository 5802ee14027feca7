"""What a task's own evaluator may ask for, and how it is told what it may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grading_kit import boolean_exam, scripted_base
from posttrain.core.engine import Turn
from posttrain.core.evaluation import EngineWanted
from posttrain.engines.client import EngineWorker
from posttrain.grading.asking import Asking
from posttrain.infra.processes import Spawner

TURN = Turn(role="user", content="not True is")


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    place = tmp_path_factory.mktemp("asking")
    exam = boolean_exam(scripted_base(place / "base"), items=4)
    with Spawner() as spawner, EngineWorker(spawner, log=place / "engine.log", gpu=None) as worker:
        worker.open(Path(exam.base), exam.numeric)
        yield Asking(worker, prompts=exam.prompts, prompt=exam.prompt, generation=exam.generation)


def test_pinned_prompts_and_words_of_its_own_are_answered_in_the_order_asked(asking: Asking) -> None:
    assert len(asking(EngineWanted(ids=("i2", "i0"))).outputs) == 2
    assert len(asking(EngineWanted(ids=("i2",), turns=((TURN,),))).outputs) == 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an item that is none": ({"ids": ("i9",)}, "'i9' is not one of the items"),
    "conversations for other items than asked": (
        {"ids": ("i0", "i1"), "turns": ((TURN,),)},
        "1 conversations for 2 items",
    ),
    "samples": ({"ids": ("i0",), "generation": {"samples": 3}}, "benchmark.yaml"),
    "a field that is none": ({"ids": ("i0",), "generation": {"beams": 3}}, "beams"),
    "no temperature at all": ({"ids": ("i0",), "generation": {"temperature": float("inf")}}, "temperature"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_asked_is_said_to_the_evaluator(asking: Asking, kind: str) -> None:
    wanted, said = WRONG[kind]
    assert said in asking(EngineWanted(**wanted)).error
