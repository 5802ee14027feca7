"""What goes to a driver model and what comes back, whatever its provider speaks."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import Field

from posttrain.core.errors import PosttrainError
from posttrain.core.frozen import Frozen

Reason = Literal["answer", "server", "time", "refused", "too_long"]


class Message(Frozen):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Usage(Frozen):
    """Tokens and money; sums of exchanges."""

    calls: int = Field(default=0, ge=0)
    """Exchanges that gave an answer, repairs included."""
    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    estimated: bool = False
    """Some server did not count, so tokens are guessed from the length of the texts."""
    cost: float | None = None
    """In dollars; None where a price is unknown."""
    seconds: float = Field(default=0.0, ge=0.0)

    def __add__(self, other: Usage) -> Usage:
        """The sum; a cost is known only where it is known for every part that has calls."""
        parts = [part.cost for part in (self, other) if part.calls]
        known = [cost for cost in parts if cost is not None]
        return Usage(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            estimated=self.estimated or other.estimated,
            cost=sum(known) if known and len(known) == len(parts) else None,
            seconds=round(self.seconds + other.seconds, 3),
        )


class Completion(Frozen):
    """One answer as the server gave it."""

    text: str
    cut: bool = False
    """Ended by a limit of length, the server's or ours."""
    input_tokens: int | None = None
    output_tokens: int | None = None


class Provider(Protocol):
    """A way to reach models. Implementations keep no state between calls."""

    async def complete(self, messages: tuple[Message, ...], *, timeout_s: float) -> Completion:
        """One exchange. Raises Unavailable where another try may help, LlmFailed where it cannot."""
        ...


class LlmFailed(PosttrainError):
    """No usable answer; `reason` says whose fault it is.

    answer: the model did not give the asked form, repairs included. server: it could not be reached or
    failed again and again. time: what was left of the time was not enough. refused: key, address or model
    name is wrong, and asking again is pointless. too_long: the question is longer than the model's context.
    """

    def __init__(self, text: str, *, reason: Reason, usage: Usage | None = None) -> None:
        super().__init__(text)
        self.reason: Reason = reason
        self.usage = usage or Usage()
        """What was spent in vain."""


class Unavailable(PosttrainError):
    """A fault that may pass: too many requests, a server error, a timeout, a cut connection."""

    def __init__(self, text: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
