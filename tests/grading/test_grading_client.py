"""The client that agents use: standard library only, three exit codes, JSON whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grading_kit import ScriptedAssessor, served
from posttrain.grading.client import GRADED, NOT_GRADED, WRONG_USE, Reply, call, submit


def test_a_grade_is_exit_code_0_and_its_text_is_the_answer(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        reply = submit(made.url, made.save("v1"), note="é", final=True)
    assert reply.exit_code == GRADED
    assert json.loads(reply.text())["score"] == 60.0
    assert (reply.content["note"], reply.content["final"]) == ("é", True)


def test_no_wait_is_0_once_accepted(tmp_path: Path) -> None:
    with served(tmp_path, assessor=ScriptedAssessor(hold=True)) as made:
        reply = submit(made.url, made.save("v1"), wait=False)
        assert (reply.status, reply.exit_code) == (202, GRADED)


@pytest.mark.parametrize("raises", ["unloadable", "rejected", "died"])
def test_what_is_not_graded_is_1(tmp_path: Path, raises: str) -> None:
    with served(tmp_path) as made:
        assert submit(made.url, made.save("v1", raises=raises)).exit_code == NOT_GRADED


def test_too_late_and_too_many_are_1(tmp_path: Path) -> None:
    with served(tmp_path, max_submissions=1) as made:
        submit(made.url, made.save("v1"))
        assert submit(made.url, made.save("v2")).exit_code == NOT_GRADED
        made.grader.close()
        assert submit(made.url, "output/v2").exit_code == NOT_GRADED


def test_a_wrong_path_or_url_is_2(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        assert submit(made.url, "output/none").exit_code == WRONG_USE
        assert submit(made.url[:-1], made.save("v1")).exit_code == WRONG_USE


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/run/x", "not a url", "http://", "file:///etc/passwd"])
def test_no_server_is_a_json_error_and_1(url: str) -> None:
    reply = call(url, "/health", timeout_s=5)
    assert reply.exit_code == NOT_GRADED
    assert "error" in json.loads(reply.text())


def test_an_answer_that_is_not_ours_is_an_error() -> None:
    assert Reply(0, {"error": "x"}).exit_code == NOT_GRADED


def test_proxies_of_the_environment_are_not_used_for_loopback(tmp_path: Path) -> None:
    code = "import sys; from posttrain.grading.client import call; print(call(sys.argv[1], '/health').status)"
    with served(tmp_path) as made:
        environment = os.environ | {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        ended = subprocess.run(
            [sys.executable, "-c", code, made.url],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.stdout.strip() == "200"


def test_the_client_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; import posttrain.grading.client;"
        "print([m for m in ('pydantic', 'httpx', 'fastapi', 'blake3') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]"
