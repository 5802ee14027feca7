"""What stands before the application: the secret prefix, the Host header, and the size of a body.

Plain ASGI, so that a flood is turned away at the lowest price.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_LIMIT = 64 << 10
_READ_AWAY = 64 << 20
"""How much of a body that is too large is read and dropped, so that its sender can read the answer."""

_AT_ONCE = ("/health", "/time")
"""Answered without a place in the line."""


class Gate:
    """Lets through requests to `/run/<secret>/…`, that prefix removed, from this host, of modest size."""

    def __init__(self, app: App, *, secret: str, refusal: Callable[[str, str], dict[str, Any]]) -> None:
        """`refusal(error, hint)` is the JSON of an answer that turns a request away."""
        self._app = app
        self._secret = secret.encode("ascii")
        self._refusal = refusal
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        inner = self._without_prefix(scope["path"])
        if not is_loopback(_header(scope, b"host")):
            await self._refuse(send, 403, "the Host header names another host", "Use $GRADING_SERVER_URL.")
        elif inner is None:
            await self._refuse(send, 404, "nothing here: use $GRADING_SERVER_URL", "It ends in a secret.")
        elif (body := await _read_body(scope, receive)) is None:
            await self._refuse(send, 413, f"the body is larger than {BODY_LIMIT} bytes", "Send a path only.")
        else:
            if inner not in _AT_ONCE:
                await self._one_a_round()
            await self._app(
                {**scope, "path": inner, "raw_path": inner.encode()}, _replay(body, receive), send
            )

    async def _one_a_round(self) -> None:
        """Let one request a round of the event loop begin, so that a flood delays only itself."""
        async with self._turn:
            await asyncio.sleep(0)

    def _without_prefix(self, path: str) -> str | None:
        """The path below the capability, None unless the secret is the right one."""
        parts = path.split("/", 3)
        given = parts[2] if len(parts) > 2 and parts[1] == "run" else ""
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._secret):
            return None
        return "/" + "".join(parts[3:]).lstrip("/")

    async def _refuse(self, send: Send, status: int, error: str, hint: str) -> None:
        await send_json(send, status, self._refusal(error, hint), close=True)


async def send_json(send: Send, status: int, content: dict[str, Any], *, close: bool = False) -> None:
    """One whole JSON answer."""
    body = json.dumps(content).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_loopback(host: str) -> bool:
    """Whether a Host header names this machine by a loopback name or address, with or without a port."""
    name = host.strip().lower()
    name = name[1:].split("]", 1)[0] if name.startswith("[") else name.split(":", 1)[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _header(scope: Scope, name: bytes) -> str:
    """The one value of a header; empty if it is missing or there are several."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1") if len(values) == 1 else ""


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """The whole body; None if it is too large, and then some more of it was read and dropped."""
    declared = _header(scope, b"content-length")
    if declared.isdecimal() and int(declared) > _READ_AWAY:
        return None
    body, seen = bytearray(), 0
    while seen <= _READ_AWAY:
        message = await receive()
        if message["type"] != "http.request":
            return None
        seen += len(message.get("body", b""))
        if seen <= BODY_LIMIT:
            body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body) if seen <= BODY_LIMIT else None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive channel that gives the body once, then what the real one says."""
    given = False

    async def channel() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return channel
