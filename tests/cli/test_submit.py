"""`submit` against a server on loopback that answers what it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from posttrain.cli.main import execute


class Answers(BaseHTTPRequestHandler):
    status = 200
    received: ClassVar[dict[str, Any]] = {}

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        type(self).received = {"path": self.path, "body": json.loads(self.rfile.read(length))}
        body = json.dumps({"submission_id": 1, "score": 65.0}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Answers]]:
    class Own(Answers):
        pass

    with HTTPServer(("127.0.0.1", 0), Own) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        monkeypatch.setenv("GRADING_SERVER_URL", f"http://127.0.0.1:{listening.server_port}/run/secret")
        monkeypatch.chdir(tmp_path)
        yield Own
        listening.shutdown()


def test_the_answer_is_printed_as_json(server: type[Answers], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["submit", "output/v1", "--final", "--note", "third try"]) == 0
    assert json.loads(capsys.readouterr().out) == {"submission_id": 1, "score": 65.0}
    assert server.received == {
        "path": "/run/secret/submit",
        "body": {"model_path": "output/v1", "wait": True, "final": True, "note": "third try"},
    }


def test_a_path_that_exists_here_is_sent_as_an_absolute_one(server: type[Answers], tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    execute(["submit", "v1", "--no-wait"])
    assert server.received["body"]["model_path"] == str(tmp_path / "v1")
    assert server.received["body"]["wait"] is False


@pytest.mark.parametrize(
    ("status", "code"), [(200, 0), (202, 0), (422, 1), (503, 1), (410, 1), (400, 2), (404, 2)]
)
def test_the_exit_code_tells_graded_not_graded_and_wrong_use(
    server: type[Answers], status: int, code: int
) -> None:
    server.status = status
    assert execute(["submit", "output/v1"]) == code


def test_outside_a_workspace_it_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GRADING_SERVER_URL", raising=False)
    assert execute(["submit", "output/v1"]) == 2
    assert "GRADING_SERVER_URL" in capsys.readouterr().err
