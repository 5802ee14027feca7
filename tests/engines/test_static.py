"""Recorded steps write what transformers writes; here uncaptured, on a processor, step for step the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import DeviceBusy
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.fitting import fit_requests

from .conftest import CHAT, QUESTIONS, ask
from .test_transformers_engine import PLAN, engine_on, outputs_of, plain_texts

torch = pytest.importorskip("torch")

PLENTY = 1 << 32


def static_outputs(
    engine: Any, *, rows: int = 12, count: int = 1, static: Any = None, **generation: Any
) -> list[Output]:
    """The answers of `engine` to the questions (`count` times over) by recorded steps."""
    from posttrain.engines.batching import Stops
    from posttrain.engines.sampling import Sampler

    settings = GenerationSettings(**{"max_new_tokens": 24, **generation})
    prompts = ask(QUESTIONS * count)
    rendered = engine.render(prompts, CHAT)
    fitted = fit_requests(prompts, rendered, settings, numeric=PLAN, max_length=None)
    requests = fitted.requests
    outputs: list[Output | None] = [None] * len(requests)
    writing = (static or static_engine(engine, rows=rows)).answer(
        requests,
        sampler=Sampler(settings),
        stops=Stops(engine._tokenizer, ids=engine._stop_ids, texts=settings.stop),
    )
    with torch.inference_mode():
        for answered in writing:
            outputs[answered.index] = answered.output
    return outputs


def static_engine(engine: Any, *, rows: int = 12, memory_bytes: int = PLENTY) -> Any:
    from posttrain.engines.device import Room
    from posttrain.engines.static_batching import StaticEngine
    from posttrain.engines.static_ops import PlainOps

    return StaticEngine(engine._decoder, PlainOps(), rows=rows, room=Room(rows=memory_bytes, working=PLENTY))


@pytest.mark.parametrize("tied", [True, False])
def test_texts_equal_those_of_transformers(make_tiny: Callable[..., Path], tied: bool) -> None:
    folder = make_tiny(dtype="F32", tied=tied)
    texts = [output.text for output in static_outputs(engine_on(folder))]
    assert texts == plain_texts(folder, QUESTIONS)


@pytest.mark.parametrize("limit", [1, 7, 16, 17, 40])
def test_refilled_and_moved_rows_change_no_text(tiny: Path, limit: int) -> None:
    engine = engine_on(tiny)
    expected = outputs_of(engine, ask(QUESTIONS * 5), max_new_tokens=limit)
    assert static_outputs(engine, rows=8, count=5, max_new_tokens=limit) == expected


def test_sampling_stops_and_penalties_are_those_of_the_other_loop(tiny: Path) -> None:
    engine = engine_on(tiny)
    for settings in (
        {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "samples": 3},
        {"repetition_penalty": 1.3},
        {"temperature": 0.7, "repetition_penalty": 1.1},
        {"stop": ("e", "zz")},
    ):
        expected = outputs_of(engine, ask(QUESTIONS), **settings)
        assert static_outputs(engine, rows=8, **settings) == expected


def test_what_was_asked_before_does_not_show(tiny: Path) -> None:
    engine = engine_on(tiny)
    static = static_engine(engine)
    first = static_outputs(engine, static=static)
    for parameter in engine._model.parameters():
        parameter.data.fill_(float("nan"))
    static_outputs(engine, static=static)
    engine.load(None)
    assert static_outputs(engine, static=static) == first


def test_memory_that_is_short_means_fewer_rows_and_none_is_busy(tiny: Path) -> None:
    from posttrain.engines.static_decoder import arena_bytes

    engine = engine_on(tiny)
    expected = outputs_of(engine, ask(QUESTIONS * 3))
    enough = arena_bytes(engine._decoder, rows=8, capacity=400)
    static = static_engine(engine, rows=512, memory_bytes=enough)
    assert static_outputs(engine, count=3, static=static) == expected
    with pytest.raises(DeviceBusy, match="8 rows of"):
        static_outputs(engine, static=static_engine(engine, memory_bytes=1000))
