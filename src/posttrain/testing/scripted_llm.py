"""A large model that says what a script says: an OpenAI-compatible server on the loopback.

The same script is played to clients of chat completions, of the Responses API, of Anthropic's messages and of
Google's generateContent.

    python -m posttrain.testing.scripted_llm SCRIPT.json [--port 0] [--log FILE]

prints its base URL as the first line. In tests: `with ScriptedLlm(script) as llm: llm.url, llm.requests`.
What a script may hold stands in llm_script.py.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO
from urllib.parse import urlsplit

from posttrain.core.errors import UsageError, boundary
from posttrain.testing import llm_anthropic, llm_chat, llm_google, llm_responses
from posttrain.testing.llm_chat import BadRequest, Question, Reply, failure
from posttrain.testing.llm_script import Playable, Script, Step, read_script

_MOST_BYTES = 64 * 2**20
"""Longer requests are refused unread."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    number: int
    """1, 2, … in the order of arrival."""
    method: str
    path: str
    headers: dict[str, str]
    """With lower-case names."""
    body: Any
    """The JSON, or the text where it is none."""
    step: int | None = None
    """The step that answered: 1, 2, …; None where none did."""


class ScriptedLlm:
    """A running server; a context manager. `url` is what OPENAI_API_BASE wants to be set to."""

    def __init__(self, script: Playable, *, port: int = 0, log: TextIO | None = None) -> None:
        self.script = read_script(script)
        self._player = _Player(self.script, log)
        try:
            self._server = _Server(port, self._player)
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}; take another one, or 0") from error
        except OverflowError as error:
            raise UsageError(f"--port {port}: not between 0 and 65535") from error
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="scripted-llm", daemon=True
        )

    @property
    def requests(self) -> list[Asked]:
        """All requests so far."""
        return self._player.asked()

    def __enter__(self) -> ScriptedLlm:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._player.closing.set()  # slow answers end now
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class _Player:
    """Which step comes next, and what was asked; for all connections together."""

    script: Script
    log: TextIO | None
    closing: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _used: dict[int, int] = field(default_factory=dict)
    _asked: list[Asked] = field(default_factory=list)

    def asked(self) -> list[Asked]:
        with self._lock:
            return list(self._asked)

    def take(self, question: Question | None, request: dict[str, Any]) -> tuple[Asked, Step | None]:
        """The step that answers, used up by one, and the request as it is remembered."""
        with self._lock:
            at = None if question is None else self._next(question)
            if at is not None:
                self._used[at] = self._used.get(at, 0) + 1
            number = len(self._asked) + 1
            asked = Asked(number=number, step=None if at is None else at + 1, **request)
            self._asked.append(asked)
            if self.log is not None:
                print(json.dumps(asdict(asked), ensure_ascii=False), file=self.log, flush=True)
        return asked, None if at is None else self.script.steps[at]

    def _next(self, question: Question) -> int | None:
        for at, step in enumerate(self.script.steps):
            spent = step.uses is not None and self._used.get(at, 0) >= step.uses
            if not spent and step.fits(whole=question.whole, last=question.last):
                return at
        return None


@dataclass(frozen=True)
class _Dialect:
    """One of the APIs in which the script is played."""

    read: Callable[[Any], Question]
    whole: Callable[[Reply], dict[str, Any]]
    events: Callable[[Reply, int], Iterator[dict[str, Any]]]
    named_events: bool = False
    """Whether a stream's events carry their names."""
    end: bytes = b""
    """Of a stream."""


_DIALECTS = {
    "/chat/completions": _Dialect(
        llm_chat.read_question, llm_chat.whole, llm_chat.events, end=b"data: [DONE]\n\n"
    ),
    "/responses": _Dialect(
        llm_responses.read_question, llm_responses.whole, llm_responses.events, named_events=True
    ),
    "/messages": _Dialect(
        llm_anthropic.read_question, llm_anthropic.whole, llm_anthropic.events, named_events=True
    ),
}
_GOOGLE = re.compile(r"(?:/v1beta)?/models/([^/:]+):(streamGenerateContent|generateContent)")


def _dialect(endpoint: str) -> _Dialect | None:
    """What is spoken at an endpoint; Google's ones name the model."""
    found = _GOOGLE.fullmatch(endpoint)
    if found is None:
        return _DIALECTS.get(endpoint)
    read = partial(llm_google.read_question, model=found[1], stream=found[2] == "streamGenerateContent")
    return _Dialect(read, llm_google.whole, llm_google.events)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, player: _Player) -> None:
        self.player = player
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is its own business; anything else is told as usual."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._remember(None)
        if not self._admitted():
            return
        if self._endpoint() == "/models":
            models = [
                {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "script"}
                for name in self.server.player.script.models
            ]
            self._send_json(200, {"object": "list", "data": models})
        else:
            self._send_json(404, failure(f"there is no {self.path} here"))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > _MOST_BYTES:
            self.close_connection = True
            self._send_json(413, failure("the request is too long, or does not say how long it is"))
            return
        body = _decoded(self.rfile.read(int(length)))
        if not self._admitted():
            self._remember(body)
        elif self._endpoint().endswith((":countTokens", "/count_tokens")):
            self._remember(body)
            self._send_json(200, {"totalTokens": (tokens := len(str(body)) // 4), "input_tokens": tokens})
        elif (dialect := _dialect(self._endpoint())) is None:
            self._remember(body)
            self._send_json(404, failure(f"there is no {self.path} here"))
        else:
            self._complete(body, dialect)

    def _complete(self, body: Any, dialect: _Dialect) -> None:
        try:
            with boundary(BadRequest, "no request of this API"):
                question = dialect.read(body)
        except BadRequest as error:
            self._remember(body)
            self._send_json(400, failure(str(error)))
            return
        asked, step = self.server.player.take(question, self._request(body))
        if step is None:
            told = f"the script has no step for request {asked.number}"
            self._send_json(404, failure(told, kind="script_error", code="no_step"))
            return
        self.server.player.closing.wait(step.delay_s)
        self._play(step, Reply.of(step, question, asked.number), dialect)

    def _play(self, step: Step, reply: Reply, dialect: _Dialect) -> None:
        if step.hang_up:
            self._hang_up()
        elif step.status is not None:
            kind = "rate_limit_error" if step.status == 429 else "server_error"
            self._send_json(step.status, failure(step.message, kind=kind), step)
        elif step.raw is not None:
            kind = "text/event-stream" if reply.question.stream else "application/json"
            self._send(200, step.raw.encode("utf-8", "surrogatepass"), kind, step)
        elif reply.question.stream:
            self._stream(step, _events(dialect, dialect.events(reply, step.chunk_chars)))
        else:
            self._send_json(200, dialect.whole(reply), step)

    def _stream(self, step: Step, events: Iterable[bytes]) -> None:
        """Server-sent events, one HTTP chunk each."""
        self._head(200, "text/event-stream", step, {"Transfer-Encoding": "chunked"})
        left = step.cut_after
        for event in events:
            part = event if left is None else event[:left]
            if part:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                self.wfile.flush()
            if left is not None:
                left -= len(part)
                if not left:
                    self._hang_up()
                    return
            self.server.player.closing.wait(step.chunk_s)
        self.wfile.write(b"0\r\n\r\n")

    def _send_json(self, status: int, value: Any, step: Step | None = None) -> None:
        body = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        self._send(status, body, "application/json", step)

    def _send(self, status: int, body: bytes, kind: str, step: Step | None) -> None:
        self._head(status, kind, step, {"Content-Length": str(len(body))})
        cut = step.cut_after if step is not None else None
        self.wfile.write(body[:cut])
        if cut is not None and cut < len(body):
            self._hang_up()

    def _head(self, status: int, kind: str, step: Step | None, framing: dict[str, str]) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, **(step.headers if step is not None else {}), **framing}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def _admitted(self) -> bool:
        key = self.server.player.script.api_key
        given = [self.headers.get(name) for name in ("Authorization", "x-api-key", "x-goog-api-key")]
        if key is None or given[0] == f"Bearer {key}" or key in given[1:]:
            return True
        self._send_json(401, failure("the API key is wrong or missing", code="invalid_api_key"))
        return False

    def _remember(self, body: Any) -> None:
        self.server.player.take(None, self._request(body))

    def _request(self, body: Any) -> dict[str, Any]:
        headers = {name.lower(): value for name, value in self.headers.items()}
        return {"method": self.command, "path": self.path, "headers": headers, "body": body}

    def _endpoint(self) -> str:
        return re.sub("^/v1(?=/)", "", urlsplit(self.path).path).rstrip("/")


def _events(dialect: _Dialect, events: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    for event in events:
        name = f"event: {event['type']}\n" if dialect.named_events else ""
        data = json.dumps(event, ensure_ascii=False)
        yield f"{name}data: {data}\n\n".encode("utf-8", "surrogatepass")
    if dialect.end:
        yield dialect.end


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")


def main() -> int:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m posttrain.testing.scripted_llm", description=__doc__)
    parser.add_argument("script", type=Path, help="JSON: a list of steps, or an object with `steps`")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--log", type=Path, help="append every request here, as a line of JSON")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        log = options.log.open("a", encoding="utf-8", errors="surrogatepass") if options.log else None
        with ScriptedLlm(options.script, port=options.port, log=log) as llm:
            sys.stdout.write(f"{llm.url}\n")
            sys.stdout.flush()
            stop.wait()
    except (UsageError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
