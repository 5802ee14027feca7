"""A good submission first, then everything that hurts; each within bounds that spare the machine."""

import os
import resource
import sys
import time

from kit import ADDRESS, WORKSPACE, attempt, make, play, submit, tell


def processes() -> None:
    """Its limit is in force and cannot be raised; then three hundred processes that will not go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    tell("limit", hard)
    attempt("raise", lambda: resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1)))
    make("v1", 0.6, seed=1)
    tell("answer", submit("v1"))
    resource.setrlimit(resource.RLIMIT_NPROC, (min(300, soft), hard))
    made = 0
    try:
        while made < 2000:
            if os.fork() == 0:
                time.sleep(3600)
                os._exit(0)
            made += 1
    except OSError as error:
        tell("stopped", [made, str(error)])
    os._exit(0)


def descriptors() -> None:
    """All connections that it can open, half of a request on each."""
    import socket

    held = []
    try:
        while len(held) < 900:
            connection = socket.create_connection(("127.0.0.1", ADDRESS.port), timeout=5)
            connection.sendall(b"POST " + ADDRESS.path.encode() + b"/submit HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            held.append(connection)
    except OSError as error:
        tell("refused", str(error))
    tell("held", len(held))
    for connection in held:
        connection.close()
    make("v1", 0.6, seed=1)
    tell("answer", submit("v1"))


def noise() -> None:
    """Forty megabytes on standard output and a file with a hole of a terabyte."""
    make("v1", 0.6, seed=1)
    tell("answer", submit("v1"))
    for _ in range(40):
        sys.stdout.write("\x1b]0;owned\x07" + "x" * (1 << 20) + "\n")
    with (WORKSPACE / "output" / "hole").open("wb") as file:
        file.truncate(1 << 40)


play(processes, descriptors, noise)
