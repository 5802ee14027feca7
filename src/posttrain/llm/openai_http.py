"""Chat completions over HTTP: OpenAI and every server that speaks like it.

Written on httpx instead of a vendor's library, because what matters here lies below it: a bound on the
whole exchange, a cap on what is read, streams that end without an end, and servers that know fewer
parameters than the original.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from posttrain.llm.messages import Completion, LlmFailed, Message, Unavailable
from posttrain.llm.settings import OPENAI_BASE, LlmSettings

_CONNECT_S = 20.0
_CHARS_A_TOKEN = 12
"""More than any language needs; beyond this many characters for each allowed token an answer runs wild."""
_LEAST_CAP = 64 * 1024
_MOST_TOKENS = 10**12
"""What a server counts beyond that is nonsense, and no number that money could be computed from."""
_POINTLESS = (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)
_TOO_LONG = re.compile(
    r"context.{0,40}(length|size|window|exceed)|too (long|many tokens)|maximum.{0,40}(token|length)|n_ctx",
    re.I,
)
_OPTIONAL = ("stream_options", "temperature", "max_completion_tokens", "max_tokens", "stream")
"""Parameters that a server may not know; one that it names in a refusal is left out."""


class OpenAiHttp:
    """One server and one model."""

    def __init__(self, settings: LlmSettings) -> None:
        self._settings = settings
        self._url = (settings.base_url or OPENAI_BASE).rstrip("/") + "/chat/completions"
        self._cap = max(_LEAST_CAP, settings.max_answer_tokens * _CHARS_A_TOKEN)

    async def complete(self, messages: tuple[Message, ...], *, timeout_s: float) -> Completion:
        body = self._body(messages)
        timeout = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        try:
            async with httpx.AsyncClient(timeout=timeout, headers=self._headers()) as client:
                for _ in range(len(_OPTIONAL) + 1):
                    async with client.stream("POST", self._url, json=body) as response:
                        if response.status_code == 200:
                            return await self._read(response)
                        refusal = await _refusal(response, self._settings)
                    unknown = _named(body, refusal) if response.status_code in (400, 422) else None
                    if unknown is None:
                        raise _fault(response, refusal)
                    body.pop(unknown)
                raise LlmFailed(f"the server refuses every form of the request: {refusal}", reason="answer")
        except httpx.InvalidURL as error:
            raise LlmFailed(f"the model's server has no usable address: {error}", reason="refused") from error
        except httpx.HTTPError as error:
            raise Unavailable(f"{type(error).__name__}: {error}".removesuffix(": ")) from error

    def _headers(self) -> dict[str, str]:
        key = self._settings.api_key
        return {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}

    def _body(self, messages: tuple[Message, ...]) -> dict[str, Any]:
        settings = self._settings
        # the original no longer takes max_tokens, the others do not yet know the new name
        limit = "max_tokens" if settings.base_url else "max_completion_tokens"
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [{"role": each.role, "content": each.content} for each in messages],
            limit: settings.max_answer_tokens,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def _read(self, response: httpx.Response) -> Completion:
        if "text/event-stream" in response.headers.get("content-type", ""):
            return await self._read_stream(response)
        raw = bytearray()
        async for part in response.aiter_bytes():
            raw += part
            if len(raw) > 8 * self._cap:
                return Completion(text="", cut=True)
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"the server's answer is not JSON: {error}") from error
        choice = self._choice(content)
        text = _text(choice.get("message"))
        return self._completion(text, choice.get("finish_reason"), content.get("usage"))

    async def _read_stream(self, response: httpx.Response) -> Completion:
        parts: list[str] = []
        size, finish, usage, done = 0, None, None, False
        async for event in _events(response, cap=8 * self._cap):
            if event == "[DONE]":
                done = True
                break
            content = self._event(event)
            usage = content.get("usage") or usage
            for choice in _choices(content):
                text = _text(choice.get("delta"))
                parts.append(text)
                size += len(text)
                finish = choice.get("finish_reason") or finish
            if size > self._cap:
                finish, done = "length", True
                break
        if not (done or finish):
            raise Unavailable("the connection was cut in the middle of an answer")
        return self._completion("".join(parts), finish, usage)

    def _event(self, text: str) -> dict[str, Any]:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"an event of the stream is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise Unavailable("an event of the stream is no object")
        if content.get("error"):
            told = self._settings.shown(str(content["error"]), 300)
            raise Unavailable(f"the server reports in the stream: {told}")
        return content

    def _choice(self, content: Any) -> dict[str, Any]:
        choices = _choices(content) if isinstance(content, dict) else []
        if not choices:
            told = self._settings.shown(str(content), 200)
            raise Unavailable(f"the server's answer holds no choice: {told}")
        return choices[0]

    def _completion(self, text: str, finish: Any, usage: Any) -> Completion:
        counted = usage if isinstance(usage, dict) else {}
        return Completion(
            text=text[: self._cap],
            cut=finish == "length" or len(text) > self._cap,
            input_tokens=_count(counted.get("prompt_tokens")),
            output_tokens=_count(counted.get("completion_tokens")),
        )


async def _events(response: httpx.Response, *, cap: int) -> AsyncIterator[str]:
    """The data of server-sent events. A line without an end must not fill the memory."""
    pending, seen = "", 0
    decoder = getincrementaldecoder("utf-8")("replace")  # whatever charset the server claims
    async for raw in response.aiter_bytes():
        part = decoder.decode(raw)
        seen += len(part)
        pending += part
        *lines, pending = pending.split("\n")
        for line in lines:
            if line.startswith("data:"):
                yield line[5:].strip()
        if len(pending) > cap or seen > 64 * cap:
            raise Unavailable("the server streams without end")
    if pending.startswith("data:"):
        yield pending[5:].strip()


def _choices(content: dict[str, Any]) -> list[dict[str, Any]]:
    choices = content.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _text(message: Any) -> str:
    """What a message says: its content, else the arguments of a tool that the model chose to call."""
    if not isinstance(message, dict):
        return ""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if isinstance(content, str) and content:
        return content
    calls = message.get("tool_calls")
    functions = (
        [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )
    return "".join(
        str(function.get("arguments") or "") for function in functions if isinstance(function, dict)
    )


def _count(value: Any) -> int | None:
    counted = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS
    return value if counted else None


async def _refusal(response: httpx.Response, settings: LlmSettings) -> str:
    """The server's words, the beginning of them; without the key, of which a cut must not leave a part."""
    raw = bytearray()
    async for part in response.aiter_bytes():
        raw += part
        if len(raw) > 4096:
            break
    return " ".join(settings.shown(raw.decode("utf-8", "replace"), 2000).split())


def _named(body: dict[str, Any], refusal: str) -> str | None:
    return next((name for name in _OPTIONAL if name in body and name in refusal), None)


def _fault(response: httpx.Response, refusal: str) -> Exception:
    """Whether another try can help."""
    status = response.status_code
    asked = f"{response.request.url.host}{response.request.url.path}"
    text = f"HTTP {status} from the model's server ({asked}): {refusal[:300] or response.reason_phrase}"
    if status in (408, 409, 425, 429) or status >= 500:
        return Unavailable(text, retry_after_s=_retry_after(response.headers.get("retry-after")))
    if status in (400, 413, 422) and (status == 413 or _TOO_LONG.search(refusal)):
        return LlmFailed(text, reason="too_long")
    return LlmFailed(text, reason="refused" if status in _POINTLESS else "answer")


def _retry_after(value: str | None) -> float | None:
    """Seconds or a date; None for neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
