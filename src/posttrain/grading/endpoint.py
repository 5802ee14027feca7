"""An OpenAI-compatible endpoint in front of an engine worker, for a tool that asks for itself.

A tool sends its requests side by side, a wave at a time. A wave is gathered, brought into an order that
does not depend on which request came first, and given to the worker as one batch job, so that texts
follow from the numeric plan and not from the network. Where requests come in other portions than they
should, they are answered by arrival, and the result says so.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from posttrain.core.engine import Turn
from posttrain.core.errors import InfrastructureError, PosttrainError, boundary
from posttrain.core.scores import Output
from posttrain.grading.gate import Message, Receive, Scope, Send, send_json
from posttrain.infra.digests import digest_value

BY_ARRIVAL = (
    "the tool asked in other portions than planned, so batches were made by arrival: texts may differ from "
    "one grading to the next"
)
_BODY_LIMIT = 16 << 20
_QUIET_S = 3.0
"""After this long without another request a wave is taken as it is."""


class _ChatMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions, as far as it decides an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    messages: tuple[_ChatMessage, ...] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, gt=0)
    max_completion_tokens: int | None = Field(default=None, gt=0)
    n: Literal[1] | None = None
    stream: Literal[False] | None = None
    logprobs: Literal[False] | None = None
    stop: tuple[()] | None = None
    """The ends of answers are the plan's."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(Turn(role=message.role, content=message.content) for message in self.messages)

    @property
    def limit(self) -> int | None:
        """The most tokens it asks for."""
        return self.max_completion_tokens or self.max_tokens


@dataclass(frozen=True)
class Question:
    """One request, without what does not matter."""

    turns: tuple[Turn, ...]
    limit: int | None

    @property
    def id(self) -> str:
        """The same for the same words."""
        return digest_value([turn.model_dump() for turn in self.turns])


Answer = Callable[[Sequence[Question]], Sequence[Output]]
Place = Callable[[Question], int]
"""Where a question stands among all; equal places are told apart by their words."""


@dataclass
class _Pending:
    question: Question
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Output]


@dataclass
class Served:
    """What was asked and answered: the last words of a conversation, and the outputs given to them."""

    outputs: dict[str, list[Output]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0
    by_arrival: bool = False


class Endpoint:
    """The application, and the thread that answers its waves."""

    def __init__(
        self, answer: Answer, *, expected: int, wave: int, key: str, place: Place = lambda _: 0
    ) -> None:
        """`answer` is called on one thread, with a wave at a time: `wave` questions, or what is left of the
        `expected` ones, in the order of their `place`. What it raises is kept as `failure`, and every request
        from then on is refused."""
        self._answer = answer
        self._place = place
        self._expected = expected
        self._wave = wave
        self._key = key
        self._ready = threading.Condition()
        self._pending: list[_Pending] = []
        self._last = time.monotonic()
        self._ended = False
        self.failure: PosttrainError | None = None
        self.served = Served()
        self._thread = threading.Thread(target=self._work, name="endpoint", daemon=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if not self._allowed(scope):
            await _refuse(send, 401, "this endpoint is for one evaluation, which has its key")
        elif scope["path"] != "/v1/chat/completions" or scope["method"] != "POST":
            await _refuse(send, 404, "there is POST /v1/chat/completions here and nothing else")
        elif (body := await _body(receive)) is None:
            await _refuse(send, 413, f"the body is larger than {_BODY_LIMIT} bytes")
        else:
            await self._complete(body, send)

    async def _complete(self, body: bytes, send: Send) -> None:
        try:
            request = ChatRequest.model_validate_json(body)
        except ValidationError as error:
            fault = error.errors()[0]
            await _refuse(send, 400, f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")
            return
        loop = asyncio.get_running_loop()
        pending = _Pending(Question(request.turns, request.limit), loop, loop.create_future())
        with self._ready:
            refused = self._ended or self.failure is not None
            if not refused:
                self._pending.append(pending)
                self._last = time.monotonic()
                self._ready.notify_all()
        if refused:
            await _refuse(send, 503, "the engine is gone")
            return
        try:
            output = await pending.future
        except PosttrainError as error:
            await _refuse(send, 503, str(error))
            return
        await send_json(send, 200, _completion(output))

    def _work(self) -> None:
        while (wave := self._next_wave()) is not None:
            try:
                with boundary(InfrastructureError, "answering a tool"):
                    wave.sort(key=lambda pending: (self._place(pending.question), pending.question.id))
                    outputs = self._answer([pending.question for pending in wave])
            except PosttrainError as error:
                with self._ready:
                    self.failure = error
                    wave += self._pending
                    self._pending = []
                for pending in wave:
                    _settle(pending, error)
                return
            for pending, output in zip(wave, outputs, strict=True):
                self.served.outputs[pending.question.turns[-1].content].append(output)
                _settle(pending, output)

    def _next_wave(self) -> list[_Pending] | None:
        """A whole wave, or what there is once nothing more comes; None at the end."""
        with self._ready:
            while not self._ended:
                size = min(self._wave, max(1, self._expected - self.served.count))
                quiet = time.monotonic() - self._last
                if len(self._pending) >= size or (self._pending and quiet >= _QUIET_S):
                    return self._take(size)
                self._ready.wait(_QUIET_S - quiet if self._pending else None)
            return None

    def _take(self, size: int) -> list[_Pending]:
        whole = len(self._pending) == size
        taken, self._pending = self._pending, []
        self.served.count += len(taken)
        self.served.by_arrival |= not whole or self.served.count > self._expected
        return taken

    def _allowed(self, scope: Scope) -> bool:
        given = next((value for key, value in scope["headers"] if key == b"authorization"), b"")
        return hmac.compare_digest(given, f"Bearer {self._key}".encode("ascii"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends once the wave in hand is answered; end the worker first where that must not take long."""
        with self._ready:
            self._ended = True
            waiting, self._pending = self._pending, []
            self._ready.notify_all()
        for pending in waiting:
            _settle(pending, PosttrainError("the evaluation is over"))
        self._thread.join()


def _settle(pending: _Pending, outcome: Output | PosttrainError) -> None:
    def settle() -> None:
        if pending.future.done():  # its client is gone
            return
        if isinstance(outcome, Output):
            pending.future.set_result(outcome)
        else:
            pending.future.set_exception(outcome)

    try:
        pending.loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the server has stopped, and with it everybody who waits
        return


def _completion(output: Output) -> dict[str, Any]:
    # a tool that gets no text asks again, unless the model is said to have ended by itself
    reason = "length" if output.cut and output.text else "stop"
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": "checkpoint",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": output.text},
                "logprobs": None,
                "finish_reason": reason,
            }
        ],
        "usage": {
            "prompt_tokens": 0,
            "completion_tokens": output.tokens,
            "total_tokens": output.tokens,
        },
    }


async def _refuse(send: Send, status: int, error: str) -> None:
    # as OpenAI's own clients read errors
    await send_json(send, status, {"error": {"message": error, "type": "invalid_request_error"}}, close=True)


async def _body(receive: Receive) -> bytes | None:
    body = bytearray()
    while True:
        message: Message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > _BODY_LIMIT:
            return None
        if not message.get("more_body", False):
            return bytes(body)
