"""From prompts to requests that fit a context, and answers back to their places."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from posttrain.core.engine import NumericPlan, RenderedPrompt
from posttrain.core.errors import InfrastructureError
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.batching import Answered
from posttrain.engines.fitting import Fitted, complete, fit_requests, place_answers

from .conftest import ask

PLAN = NumericPlan(engine="vllm")


def fitted(lengths: list[int], *, plan: NumericPlan = PLAN, context: int | None = 100, **settings) -> Fitted:
    rendered = [RenderedPrompt(text="", token_ids=tuple(range(length))) for length in lengths]
    generation = GenerationSettings(**{"max_new_tokens": 10, **settings})
    prompts = ask(["?"] * len(lengths))
    return fit_requests(prompts, rendered, generation, numeric=plan, max_length=context)


def test_the_longest_prompts_come_first_unless_the_plan_says_arrival() -> None:
    assert [request.index for request in fitted([3, 9, 5]).requests] == [1, 2, 0]
    arrival = PLAN.model_copy(update={"order": "arrival"})
    assert [request.index for request in fitted([3, 9, 5], plan=arrival).requests] == [0, 1, 2]


def test_answers_are_as_long_as_the_context_allows_and_that_is_said() -> None:
    found = fitted([50, 95, 100, 400])
    assert {request.index: request.limit for request in found.requests} == {0: 10, 1: 5}
    assert found.warnings == (
        "2 prompts fill the context of 100 tokens: not answered",
        "1 answers are limited by the context of 100 tokens",
    )


def test_samples_of_a_prompt_stand_together_and_draw_differently() -> None:
    requests = fitted([3, 9], samples=2).requests
    assert [request.index for request in requests] == [2, 3, 0, 1]
    assert len({request.generator.getrandbits(31) for request in requests}) == 4
    again = fitted([3, 9], samples=2).requests
    assert again[0].generator.getrandbits(31) == fitted([3, 9], samples=2).requests[0].generator.getrandbits(
        31
    )


def test_answers_return_to_their_places_and_a_full_context_is_an_empty_cut_text() -> None:
    found = fitted([3, 200, 5])
    answers = [Answered(2, Output(text="b", tokens=1)), Answered(0, Output(text="a", tokens=1))]
    outputs = complete(place_answers(found, answers))
    assert [output.text for output in outputs] == ["a", "", "b"]
    assert outputs[1].cut


def test_a_missing_answer_is_the_engine_s_fault() -> None:
    with pytest.raises(InfrastructureError, match="without an answer"):
        complete(place_answers(fitted([3, 5]), [Answered(0, Output(text="a", tokens=1))]))
