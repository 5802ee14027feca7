"""From rendered prompts to requests that fit the base's context, and from answers back to their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from posttrain.core.engine import NumericPlan, Prompt, RenderedPrompt
from posttrain.core.errors import InfrastructureError
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.batching import Answered, Asked
from posttrain.engines.sampling import generator_for


@dataclass(frozen=True)
class Fitted:
    """What is asked of a model for a set of prompts."""

    requests: tuple[Asked, ...]
    """In the order of the plan: the longest prompts first, or as they came."""
    places: int
    """Answers that are expected, with those that the context leaves no room for."""
    warnings: tuple[str, ...]
    """What a reader of the score should know."""


def fit_requests(
    prompts: Sequence[Prompt],
    rendered: Sequence[RenderedPrompt],
    generation: GenerationSettings,
    *,
    numeric: NumericPlan,
    max_length: int | None,
) -> Fitted:
    """Requests for all samples of all prompts; a prompt that fills the context gets none."""
    limits = [_limit(len(text.token_ids), generation, max_length) for text in rendered]
    requests = [
        Asked(
            index=number * generation.samples + sample,
            tokens=text.token_ids,
            limit=limit,
            generator=generator_for(numeric.seed, asked.id, sample),
        )
        for number, (asked, text, limit) in enumerate(zip(prompts, rendered, limits, strict=True))
        for sample in range(generation.samples)
        if limit > 0
    ]
    if numeric.order == "length":
        requests.sort(key=lambda asked: -len(asked.tokens))
    places = len(prompts) * generation.samples
    return Fitted(tuple(requests), places, tuple(_warnings(limits, generation, max_length)))


def place_answers(fitted: Fitted, answers: Iterable[Answered]) -> list[Output | None]:
    """Answers in the order of the prompts; an empty cut text where there was no room for one."""
    asked = {request.index for request in fitted.requests}
    outputs: list[Output | None] = [
        None if place in asked else Output(text="", tokens=0, cut=True) for place in range(fitted.places)
    ]
    for answered in answers:
        outputs[answered.index] = answered.output
    return outputs


def complete(outputs: Sequence[Output | None]) -> list[Output]:
    """The same without gaps; InfrastructureError if there is one."""
    found = [output for output in outputs if output is not None]
    if len(found) != len(outputs):
        raise InfrastructureError("the engine left a prompt without an answer")
    return found


def _limit(length: int, generation: GenerationSettings, max_length: int | None) -> int:
    if max_length is None:
        return generation.max_new_tokens
    return max(0, min(generation.max_new_tokens, max_length - length))


def _warnings(limits: Sequence[int], generation: GenerationSettings, max_length: int | None) -> list[str]:
    without = sum(limit == 0 for limit in limits)
    shortened = sum(0 < limit < generation.max_new_tokens for limit in limits)
    found = []
    if without:
        found.append(f"{without} prompts fill the context of {max_length} tokens: not answered")
    if shortened:
        found.append(f"{shortened} answers are limited by the context of {max_length} tokens")
    return found
