"""From a checkpoint to its grade, with a grading server that is not always there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from posttrain.research.nodes import Scored
from posttrain.research.post_training.handing_in import Desk

GRADE = {
    "submission_id": 1,
    "model_path": "output/n001",
    "status": "graded",
    "score": 60.0,
    "ci95": [55.0, 65.0],
    "baseline_score": 50.0,
    "improvement": 10.0,
    "improvement_ci95": [5.0, 15.0],
    "n": 100,
}


class Busy(ThreadingHTTPServer):
    """A grading server that has the submission, and is silent the first few times it is asked for it."""

    silent = 0
    known = True
    posted = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Busy

    def do_GET(self) -> None:
        if self.path != "/submissions":
            self._answer(200, GRADE)
        elif self.server.silent > 0:
            self.server.silent -= 1
            self._answer(503, {"error": "busy"})
        else:
            self._answer(200, {"submissions": [GRADE] if self.server.known else []})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted += 1
        self.server.known, self.server.silent = True, 2
        self.close_connection = True  # accepted, and not a word of it
        self.connection.close()

    def _answer(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests need no access log."""

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):
            self.close_connection = True


@pytest.fixture
def server() -> Iterator[Busy]:
    with Busy(("127.0.0.1", 0), _Handler) as busy:
        thread = threading.Thread(target=busy.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield busy
        busy.shutdown()
        thread.join()


def score(server: Busy, *, seconds: float = 30.0) -> Scored:
    end = time.monotonic() + seconds
    desk = Desk(
        url=server.url, workspace=Path("/w"), remaining=lambda: end - time.monotonic(), log=lambda text: None
    )
    return desk.score(Path("/w/output/n001"), note="n")


def test_a_server_that_is_silent_for_a_moment_is_asked_again_what_it_has(server: Busy) -> None:
    server.silent = 2
    assert score(server).grade is not None
    assert server.posted == 0


def test_what_was_accepted_without_a_word_is_not_handed_in_again(server: Busy) -> None:
    server.known = False
    assert score(server).grade is not None
    assert server.posted == 1


def test_with_a_server_that_stays_silent_it_ends_with_the_time(server: Busy) -> None:
    server.silent = 10_000
    began = time.monotonic()
    scored = score(server, seconds=2.0)
    assert time.monotonic() - began < 6
    assert scored.failure is not None
    assert scored.failure.fault == "ungraded"
    assert server.posted == 0
