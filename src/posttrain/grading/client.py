"""Submitting from inside a workspace. Standard library only: any Python there can run it.

Three outcomes: graded (0), not graded (1), wrong use (2).
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

GRADED, NOT_GRADED, WRONG_USE = 0, 1, 2
_WRONG_USE_STATUSES = (400, 404, 413)


@dataclass(frozen=True)
class Reply:
    """What the server said; `status` is 0 if it said nothing."""

    status: int
    content: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0 a grade, or the place in the line that was asked for; 1 no grade; 2 the request was wrong."""
        if self.status in (200, 202):
            return GRADED
        return WRONG_USE if self.status in _WRONG_USE_STATUSES else NOT_GRADED

    def text(self) -> str:
        """The answer as JSON for people and scripts."""
        return json.dumps(self.content, indent=2, ensure_ascii=False)


def submit(
    base_url: str,
    model_path: str,
    *,
    wait: bool = True,
    final: bool = False,
    note: str | None = None,
    gpu: str | None = None,
    timeout_s: float | None = None,
) -> Reply:
    """Hand in a folder and, unless told otherwise, wait for its grade, however long the queue is."""
    asked: dict[str, Any] = {"model_path": model_path, "wait": wait, "final": final}
    if note is not None:
        asked["note"] = note
    if gpu is not None:
        asked["gpu"] = gpu
    return call(base_url, "/submit", body=asked, timeout_s=timeout_s)


def call(
    base_url: str, endpoint: str, *, body: dict[str, Any] | None = None, timeout_s: float | None = None
) -> Reply:
    """One request to the grading server; never raises for what a server or a network may do."""
    data = None if body is None else json.dumps(body).encode("utf-8")
    try:
        request = urllib.request.Request(  # noqa: S310
            base_url.rstrip("/") + endpoint, data=data, headers={"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is never behind one
        with opener.open(request, timeout=timeout_s) as response:
            return _reply(response.status, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return _reply(error.code, error.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Reply(0, {"error": f"no answer from the grading server: {error}", "hint": "Is the run over?"})


def _reply(status: int, raw: bytes) -> Reply:
    try:
        content = json.loads(raw)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        content = {"error": "the answer is not a grading server's", "hint": "Check GRADING_SERVER_URL."}
        return Reply(0, content)
    return Reply(status, content)
