"""The grading server of one run: a socket that the harness bound, served by uvicorn in one thread."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.grading.gate import App, Receive, Scope, Send, send_json
from posttrain.grading.peers import peer_uid
from posttrain.grading.redaction import RedactingFormatter, Redactor

_BACKLOG = 512
_MOST_CONNECTIONS = 256
"""Beyond these an answer says 503, beyond twice as many nothing is said: files must be left for the lab."""
_START_PATIENCE_S = 15.0
_STOP_PATIENCE_S = 5
_LOGGERS = ("posttrain.grading", "uvicorn.error")


def bind_tcp(port: int, *, given: bool, host: str = "127.0.0.1") -> tuple[socket.socket, str | None]:
    """A listening socket, and a sentence if it is another port than asked for.

    A port that was named by hand and is taken is a UsageError; the default one gives way to a free one.
    """
    try:
        return _bound(host, port), None
    except OSError as error:
        if given or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise UsageError(f"--port {port}: {error.strerror}; name a free one, or 0 for any") from error
    free = _bound(host, 0)
    return free, f"port {port} is taken, using {free.getsockname()[1]}"


def _bound(host: str, port: int) -> socket.socket:
    # the protocol is named because asyncio sets TCP_NODELAY only where it is: without it answers take 40 ms
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def bind_unix(path: Path, *, mode: int = 0o600) -> socket.socket:
    """A listening unix socket; a stale file at `path` is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        made.bind(str(path))
        path.chmod(mode)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def base_url(port: int, secret: str) -> str:
    """What agents get as GRADING_SERVER_URL."""
    return f"http://127.0.0.1:{port}/run/{secret}"


class GradingServer:
    """Serves an application on bound sockets until its context ends; the sockets are closed with it."""

    def __init__(
        self, app: App, sockets: Sequence[socket.socket], *, peer_uids: Collection[int] | None = None
    ) -> None:
        """`peer_uids`: whose connections are answered; None for everybody's."""
        config = uvicorn.Config(
            app,
            http=_protocol(peer_uids),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=_STOP_PATIENCE_S,
        )
        self._server = uvicorn.Server(config)
        self._sockets = list(sockets)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="grading-server", daemon=True)

    def __enter__(self) -> GradingServer:
        self._thread.start()
        waited = 0.0
        while not self._server.started:
            if self._ended.wait(0.02) or (waited := waited + 0.02) > _START_PATIENCE_S:
                raise InfrastructureError("the grading server did not start; see grading_server.log")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Answer what is being answered, then end. Stop the grader first: it tells who is waiting."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        for open_socket in self._sockets:
            open_socket.close()

    def _serve(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=self._sockets))
        finally:
            self._ended.set()


def _protocol(peer_uids: Collection[int] | None) -> type[H11Protocol]:
    class Guarded(H11Protocol):  # type: ignore[misc]  # uvicorn is not followed by the type checker
        """uvicorn's protocol, with a look at who connects and at how many there are."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > 2 * _MOST_CONNECTIONS:
                transport.abort()
            elif len(self.connections) > _MOST_CONNECTIONS:
                self.app = _overloaded
            elif peer_uids is not None and _uid_of(transport) not in peer_uids:
                self.app = _stranger

    return Guarded


def _uid_of(transport: asyncio.Transport) -> int | None:
    return peer_uid(transport.get_extra_info("socket"))


async def _overloaded(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    content: dict[str, Any] = {"error": "too many connections", "hint": "Close some, then try again."}
    await send_json(send, 503, content, close=True)


async def _stranger(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send_json(send, 403, {"error": "not your server", "hint": "Use your own run's."}, close=True)


@contextmanager
def server_log(path: Path, redact: Redactor) -> Iterator[None]:
    """While open, what the server and the grader log goes to `path`, without secrets."""
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(RedactingFormatter(redact))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()
