"""Asking a driver model for an object: tries, repairs, bounds, and the account of it all."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from posttrain.core.errors import boundary
from posttrain.llm.extraction import Unreadable, describe, read_answer
from posttrain.llm.messages import Completion, LlmFailed, Message, Provider, Unavailable, Usage
from posttrain.llm.openai_http import OpenAiHttp
from posttrain.llm.prices import cost_of
from posttrain.llm.settings import LlmSettings
from posttrain.llm.transcript import HIDDEN, Transcript

T = TypeVar("T", bound=BaseModel)

REPAIRS = 2
TRIES = 8
"""Of one exchange, against faults that may pass."""
_LONGEST_PAUSE_S = 60.0
_SHORTEST_PAUSE_S = 0.5
"""Also for a server that says "at once": eight tries within a blink are one."""
_SHOWN_BACK, _SHOWN_OF_CUT = 4000, 400
"""Characters of its own faulty answer that a model sees again; of one that ran on, less: it would go on."""
_CHARS_A_TOKEN = 4
_SHORTEST_SECRET = 12
"""A shorter one, as local servers are content with, may be a word of the answer."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """A validated answer and what it took."""

    value: T
    usage: Usage
    repairs: int


class LlmClient:
    """One driver model. Not for several threads at once."""

    def __init__(
        self,
        settings: LlmSettings,
        *,
        transcript: Transcript | None = None,
        remaining: Callable[[], float] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        provider: Provider | None = None,
    ) -> None:
        """`remaining` gives the seconds that may still be used; none of the calls outlasts them."""
        self.settings = settings
        self._transcript = transcript or Transcript(None)
        self.usage = self._transcript.spent()
        """The sum over all calls so far, with those that the transcript already held."""
        self._remaining = remaining or (lambda: float("inf"))
        self._sleep = sleep
        self._provider = provider or provider_for(settings)
        self._asked = 0

    def ask(self, schema: type[T], *, system: str, user: str, name: str) -> Answer[T]:
        """An object of class `schema` as the answer to `user`.

        An answer that is none goes back to the model with the fault named, at most twice. LlmFailed if
        there is none then, if the server cannot be reached, or if the time is up. `name` is the call's
        name in the transcript.
        """
        self._asked += 1
        before = self.usage
        messages = [
            Message(role="system", content=system),
            Message(role="user", content=f"{user}\n\n{describe(schema)}"),
        ]
        for attempt in range(REPAIRS + 1):
            completion = self._exchange(tuple(messages), name=name, attempt=attempt, before=before)
            try:
                value = read_answer(schema, completion.text)
            except Unreadable as error:
                fault = self._fault(error, completion)
                self._transcript.add(name=name, call=self._asked, attempt=attempt, fault=fault)
                messages[2:] = [
                    Message(role="assistant", content=_shown_back(completion) or "(empty)"),
                    Message(role="user", content=_repair(name, fault, schema)),
                ]
                continue
            return Answer(value=value, usage=_difference(self.usage, before), repairs=attempt)
        raise LlmFailed(
            f"{name}: no usable answer after {REPAIRS} repairs: {fault}",
            reason="answer",
            usage=_difference(self.usage, before),
        )

    def _fault(self, error: Unreadable, completion: Completion) -> str:
        if completion.cut:
            limit = self.settings.max_answer_tokens
            return f"the answer was cut after {limit} tokens; be much shorter ({error})"
        return str(error)

    def _exchange(
        self, messages: tuple[Message, ...], *, name: str, attempt: int, before: Usage
    ) -> Completion:
        """One answer; faults that may pass are waited out while there is time."""
        for tried in range(1, TRIES + 1):
            began = time.monotonic()
            try:
                completion = self._without_key(self._complete(messages))
            except (Unavailable, LlmFailed) as error:
                self._transcript.add(
                    name=name, call=self._asked, attempt=attempt, tried=tried, error=str(error),
                    seconds=round(time.monotonic() - began, 3),
                )  # fmt: skip
                if isinstance(error, LlmFailed):
                    spent = _difference(self.usage, before)
                    told = self._transcript.redacted(f"{name}: {error}")
                    raise LlmFailed(told, reason=error.reason, usage=spent) from error
                self._pause(error, tried, name=name, before=before)
                continue
            usage = self._count(messages, completion, seconds=time.monotonic() - began)
            self._transcript.add(
                name=name, call=self._asked, attempt=attempt, tried=tried, model=self.settings.model,
                messages=[message.model_dump() for message in messages], answer=completion.text,
                cut=completion.cut, usage=usage.model_dump(mode="json"),
            )  # fmt: skip
            return completion
        raise AssertionError("the last try either answers or raises")

    def _without_key(self, completion: Completion) -> Completion:
        """A server may echo the key; nothing that is made of its words is to hold it."""
        text = completion.text
        for secret in self.settings.secrets:
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, HIDDEN)
        return completion if text == completion.text else completion.model_copy(update={"text": text})

    def _complete(self, messages: tuple[Message, ...]) -> Completion:
        remaining = self._remaining()
        if remaining <= 1.0:
            raise LlmFailed("no time is left for an answer", reason="time")
        limit = min(self.settings.request_timeout_s, remaining)

        async def bounded() -> Completion:
            # around everything: a server that sends a word a minute keeps within every other timeout
            async with asyncio.timeout(limit):
                with boundary(Unavailable, "the model's server gave something unheard of"):
                    return await self._provider.complete(messages, timeout_s=limit)

        try:
            return asyncio.run(bounded())
        except TimeoutError as error:
            if limit == remaining:
                raise LlmFailed(f"no answer in the {limit:.0f} s that were left", reason="time") from error
            raise Unavailable(f"no answer within {limit:.0f} s") from error

    def _pause(self, error: Unavailable, tried: int, *, name: str, before: Usage) -> None:
        """Wait as long as the server says, else ever longer; LlmFailed if that makes no sense any more."""
        spent = _difference(self.usage, before)
        told = self._transcript.redacted(f"{name}: {error}")
        if tried == TRIES:
            raise LlmFailed(f"{told} ({TRIES} tries)", reason="server", usage=spent) from error
        seconds = min(_LONGEST_PAUSE_S, 2.0 ** (tried - 1) * random.uniform(0.8, 1.2))  # noqa: S311
        if error.retry_after_s is not None:
            seconds = max(error.retry_after_s, min(seconds, _SHORTEST_PAUSE_S))
        if seconds + 1.0 >= self._remaining():
            raise LlmFailed(f"{told}, and no time is left to try again", reason="time", usage=spent)
        self._sleep(seconds)

    def _count(self, messages: tuple[Message, ...], completion: Completion, *, seconds: float) -> Usage:
        asked, answered = completion.input_tokens, completion.output_tokens
        usage = Usage(
            calls=1,
            input_tokens=asked if asked is not None else _guess(*(each.content for each in messages)),
            output_tokens=answered if answered is not None else _guess(completion.text),
            estimated=asked is None or answered is None,
            seconds=round(seconds, 3),
        )
        usage = usage.model_copy(update={"cost": cost_of(usage, self.settings)})
        self.usage += usage
        return usage


def provider_for(settings: LlmSettings) -> Provider:
    """MissingExtra where the provider needs a library that is not installed."""
    if settings.provider == "openai":
        return OpenAiHttp(settings)
    from posttrain.llm.vendors import VendorModel

    return VendorModel(settings)


def _shown_back(completion: Completion) -> str:
    return completion.text[: _SHOWN_OF_CUT if completion.cut else _SHOWN_BACK]


def _repair(name: str, fault: str, schema: type[BaseModel]) -> str:
    again = "Answer again, in the form asked for."
    return f"That answer to '{name}' cannot be used: {fault}.\n{again}\n\n{describe(schema)}"


def _guess(*texts: str) -> int:
    return sum(len(text) for text in texts) // _CHARS_A_TOKEN + 1


def _difference(after: Usage, before: Usage) -> Usage:
    """What was used in between."""
    cost = None if after.cost is None else after.cost - (before.cost or 0.0)
    return Usage(
        calls=after.calls - before.calls,
        input_tokens=after.input_tokens - before.input_tokens,
        output_tokens=after.output_tokens - before.output_tokens,
        estimated=after.estimated,
        cost=cost,
        seconds=round(after.seconds - before.seconds, 3),
    )
