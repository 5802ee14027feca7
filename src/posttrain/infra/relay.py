"""A TCP port on the loopback of a network namespace that leads to one unix socket of the host.

Runs inside the supervisor of a view, standard library only. The server at the other end sees the
view's own user id as its peer, and the port leads nowhere else.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_BLOCK = 1 << 16
_CONNECTIONS = 128
_RETRY_S = 0.05


class Relay:
    """Listens from its construction on; `start` begins to forward."""

    def __init__(self, *, port: int, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port), backlog=_CONNECTIONS)
        self._free = threading.Semaphore(_CONNECTIONS)

    def start(self) -> None:
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._free.acquire()  # more clients than that wait in the kernel's queue
            try:
                client, _ = self._listener.accept()
            except OSError:  # the client left before it was served, or no descriptor is free
                self._free.release()
                time.sleep(_RETRY_S)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One connection, until both sides have said their last word. Without a server it is closed."""
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            try:
                server.connect(self._target)
                answers = threading.Thread(target=forward, args=(server, client), daemon=True)
                answers.start()
                forward(client, server)
                answers.join()
            finally:
                self._free.release()


def forward(source: socket.socket, sink: socket.socket) -> None:
    """Copy bytes until `source` ends, then end `sink`; if either breaks, so do both."""
    try:
        while data := source.recv(_BLOCK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
