"""The HTTP API as an agent meets it: over a real socket, with the real server, gate and client."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grading_kit import SECRET, Bench, ScriptedAssessor, served

ANCESTOR_ENTRY = {
    "submission_id": int,
    "timestamp": str,
    "model_path": str,
    "score": float,
    "baseline_score": float,
    "improvement": float,
    "elapsed_seconds": float,
}


def _raw(
    made: Bench,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    prefix: str = f"/run/{SECRET}",
) -> tuple[int, dict[str, Any], dict[str, str]]:
    port = int(made.url.split(":")[2].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, prefix + path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), {k.lower(): v for k, v in answer.getheaders()}
    finally:
        connection.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One server for requests that leave no trace; output/v1 is a whole checkpoint."""
    with served(tmp_path_factory.mktemp("shared")) as made:
        made.save("v1")
        yield made


def test_an_answer_has_every_field_of_the_ancestor_s(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        made.post({"model_path": made.save("v1", right=130)})
        reply = made.post({"model_path": made.save("v2", right=120)})
    assert reply.status == 200
    for name, kind in ANCESTOR_ENTRY.items():
        assert isinstance(reply.content[name], kind), name
        assert isinstance(reply.content["best"][name], kind), name
    assert reply.content["best"]["submission_id"] == 1
    assert reply.content["total_submissions"] == 2
    assert reply.content["status"] == "graded"
    assert "error" not in reply.content


def test_an_answer_tells_split_interval_and_time_left(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        content = made.post({"model_path": made.save("v1")}).content
    assert (content["split"], content["n"], content["remaining_s"]) == ("val", 200, 3600)
    low, high = content["ci95"]
    assert low < content["score"] < high
    low, high = content["improvement_ci95"]
    assert low < content["improvement"] < high


def test_every_answer_carries_the_rules(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        answers = [
            made.post({"model_path": made.save("v1")}),
            made.post({"model_path": "output/none"}),
            made.post({}, "/set_baseline"),
            *(made.get(path) for path in ("/health", "/time", "/submissions", "/rules", "/nothing")),
            made.get("/submissions/1"),
            made.get("/submissions/9"),
        ]
    notes = {json.dumps(answer.content["rules"], sort_keys=True) for answer in answers}
    assert len(notes) == 1
    assert "disqualifies" in notes.pop()


@pytest.mark.parametrize(
    ("raises", "status", "verdict"),
    [("rejected", 422, "rejected"), ("unloadable", 422, "unloadable"), ("died", 503, "error")],
)
def test_ungraded_has_the_same_keys_a_null_score_a_reason_and_a_hint(
    tmp_path: Path, raises: str, status: int, verdict: str
) -> None:
    with served(tmp_path) as made:
        graded = made.post({"model_path": made.save("v1")}).content
        reply = made.post({"model_path": made.save("v2", raises=raises)})
    assert reply.status == status
    assert reply.content["status"] == verdict
    assert reply.content["score"] is None
    assert reply.content["improvement"] is None
    assert graded.keys() <= reply.content.keys()
    assert reply.content["error"]
    assert reply.content["hint"]


def test_no_wait_answers_with_the_place_in_the_line(tmp_path: Path) -> None:
    with served(tmp_path, assessor=ScriptedAssessor(hold=True)) as made:
        first = made.post({"model_path": made.save("v1"), "wait": False})
        assert made.assessor.entered.wait(10)
        second = made.post({"model_path": made.save("v2", right=1), "wait": False})
        assert (first.status, second.status) == (202, 202)
        assert (second.content["status"], second.content["position"]) == ("queued", 1)
        assert made.get("/submissions/1").content["status"] == "grading"
        made.assessor.let_go.set()
        made.grader.drain(60)
        assert made.get("/submissions/2").content["status"] == "graded"
        assert made.get("/submissions/2").status == 200


def test_no_wait_with_a_broken_folder_answers_with_the_verdict(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        (made.paths.workspace.output / "empty").mkdir()
        reply = made.post({"model_path": "output/empty", "wait": False})
    assert (reply.status, reply.content["status"]) == (422, "unloadable")


def test_plain_curl_without_a_content_type_works(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        body = json.dumps({"model_path": made.save("v1")}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        status, content, _ = _raw(made, "POST", "/submit", body=body, headers=headers)
    assert (status, content["status"]) == (200, "graded")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"[]", None),
        (b"null", None),
        (b'"output/v1"', None),
        (b"{}", "model_path"),
        (b'{"model_path": null}', "model_path"),
        (b'{"model_path": 5}', "model_path"),
        (b'{"model_path": ["output/v1"]}', "model_path"),
        (b'{"model_path": ""}', "model_path"),
        (b'{"model_path": "output/\\u0000v1"}', "model_path"),
        (b'{"model_path": "output/\\ud800"}', "model_path"),
        (b'{"model_path": "output/v1", "note": "\\udfff"}', "note"),
        (b'{"model_path": "output/v1", "final": "yes"}', "final"),
        (b'{"model_path": "output/v1", "wait": 1}', "wait"),
        (b'{"model_path": "output/v1", "fnal": true}', "fnal"),
        (b'{"model_path": "output/v1", "gpu": NaN}', None),
        (b'{"model_path": "output/v1", "gpu": 1e999}', "gpu"),
        (b'{"model_path": ' + b"9" * 10_000 + b"}", None),
        (b"[" * 60_000, None),
        (b'{"model_path": "' + b"a" * 5000 + b'"}', "model_path"),
        (b'{"model_path": "../v1"}', "model_path"),
        (b'{"model_path": "/etc"}', "model_path"),
    ],
)
def test_a_bad_request_is_a_400_that_names_the_field(shared: Bench, body: bytes, field: str | None) -> None:
    status, content, headers = _raw(shared, "POST", "/submit", body=body)
    assert shared.grader.total == 0
    assert status == 400
    assert content.get("field") == field
    assert headers["content-type"].startswith("application/json")
    assert "Traceback" not in json.dumps(content)


@pytest.mark.parametrize(
    "prefix", ["", "/run", "/run/", "/run/" + "0" * 32, f"/run/{SECRET[:-1]}", f"/ruN/{SECRET}", f"/{SECRET}"]
)
def test_without_the_secret_there_is_nothing(shared: Bench, prefix: str) -> None:
    for path in ("/submit", "/health", "/openapi.json"):
        status, content, _ = _raw(shared, "GET", path, prefix=prefix)
        assert status == 404
        assert "use $GRADING_SERVER_URL" in content["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:5000", "10.0.0.1", "", "localhost.evil.example"]
)
def test_another_host_name_is_refused(shared: Bench, host: str) -> None:
    status, _, _ = _raw(shared, "GET", "/health", headers={"Host": host})
    assert status == 403


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:5000"])
def test_loopback_names_are_taken(shared: Bench, host: str) -> None:
    status, _, _ = _raw(shared, "GET", "/health", headers={"Host": host})
    assert status == 200


def test_a_body_over_64_kib_is_a_413_before_anything_else(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        made.grader.close()
        body = b'{"model_path": "' + b"a" * (64 << 10) + b'"}'
        assert _raw(made, "POST", "/submit", body=body)[0] == 413
        assert _raw(made, "POST", "/submit", body=b"x" * (20 << 20))[0] == 413
        assert _raw(made, "POST", "/submit", body=body, prefix="/run/x")[0] == 404


def test_a_chunked_body_without_a_length_is_cut_off_too(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        port = int(made.url.split(":")[2].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        chunks = (b"x" * 8192 for _ in range(20))
        connection.request("POST", f"/run/{SECRET}/submit", body=chunks, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()


def test_the_order_of_checks_is_closed_then_bad_then_too_many(tmp_path: Path) -> None:
    with served(tmp_path, max_submissions=1) as made:
        made.post({"model_path": made.save("v1")})
        full = made.post({"model_path": made.save("v2")})
        assert full.status == 429
        assert made.post({"model_path": "output/none"}).status == 400
        made.budget.left = 0.0
        assert made.post({"model_path": "output/none"}).status == 410
        assert made.post({"model_path": made.save("v3")}).status == 410
        assert made.get("/time").content["remaining"] == 0


def test_a_429_says_when_to_try_again(tmp_path: Path) -> None:
    with served(tmp_path, assessor=ScriptedAssessor(hold=True), max_waiting=1) as made:
        made.post({"model_path": made.save("v1"), "wait": False})
        assert made.assessor.entered.wait(10)
        made.post({"model_path": made.save("v2", right=1), "wait": False})
        made.save("v3")
        status, content, headers = _raw(made, "POST", "/submit", body=b'{"model_path": "output/v3"}')
    assert status == 429
    assert int(headers["retry-after"]) >= 1
    assert "waiting" in content["error"]


def test_nobody_can_set_the_baseline(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        for body in ({"score": 0.0}, {}, [], "x"):
            assert made.post(body, "/set_baseline").status == 403
        assert _raw(made, "POST", "/set_baseline", body=b"not json")[0] == 403
        assert made.post({"model_path": made.save("v1")}).content["baseline_score"] == 45.0


def test_time_is_run_meta_with_now_and_remaining(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        made.post({"model_path": made.save("v1")})
        content = made.get("/time").content
        meta = json.loads(made.paths.workspace.run_meta.read_text("utf-8"))
    assert {name: content[name] for name in meta} == meta
    assert content["remaining"] == 3600
    assert abs(content["now"] - time.time()) < 5
    assert isinstance(content["last_submit_time"], int)


def test_health_tells_the_harness_its_own_server(tmp_path: Path) -> None:
    with served(tmp_path, gpus=("0", "MIG-x")) as made:
        content = made.get("/health").content
    assert content["status"] == "ok"
    assert (content["task"], content["nonce"], content["queue"]) == ("boolean", "n1", 0)
    assert content["available_gpus"] == ["0", "MIG-x"]
    assert content["workspace"] == str(made.paths.workspace.root)


def test_an_unknown_gpu_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with served(tmp_path, gpus=("0", "1")) as made:
        reply = made.post({"model_path": made.save("v1"), "gpu": "5"})
        by_number = made.post({"model_path": "output/v1", "gpu": 1})
    assert (reply.status, reply.content["available_gpus"]) == (400, ["0", "1"])
    assert by_number.status == 200
    assert made.assessor.gpus == ["1"]


def test_unknown_paths_and_methods_are_json(shared: Bench) -> None:
    assert _raw(shared, "GET", "/x")[0] == 404
    assert _raw(shared, "GET", "/submit")[0] == 405
    assert _raw(shared, "DELETE", "/submissions/1")[0] == 405
    assert _raw(shared, "GET", "/submissions/abc")[0] == 404
    assert _raw(shared, "GET", "/submissions/" + "9" * 50)[0] == 404


def test_a_doubled_slash_after_the_base_url_does_no_harm(shared: Bench) -> None:
    status, content, _ = _raw(shared, "GET", "//health")
    assert (status, content["status"]) == (200, "ok")


def test_a_client_that_hangs_up_loses_nothing(tmp_path: Path) -> None:
    with served(tmp_path, assessor=ScriptedAssessor(hold=True)) as made:
        port = int(made.url.split(":")[2].split("/")[0])
        body = json.dumps({"model_path": made.save("v1", right=150)}).encode()
        head = f"POST /run/{SECRET}/submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + body)
            assert made.assessor.entered.wait(10)
        time.sleep(0.1)
        made.assessor.let_go.set()
        assert made.grader.drain(60)
        content = made.get("/submissions/1").content
    assert (content["status"], content["score"]) == ("graded", 75.0)


def test_waiting_submits_do_not_block_health(tmp_path: Path) -> None:
    with served(tmp_path, assessor=ScriptedAssessor(hold=True)) as made:
        threads = [
            threading.Thread(target=made.post, args=({"model_path": made.save(f"v{k}", right=k)},))
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        assert made.assessor.entered.wait(10)
        begun = time.monotonic()
        assert made.get("/health").status == 200
        assert time.monotonic() - begun < 1.0
        made.assessor.let_go.set()
        for thread in threads:
            thread.join()
        assert len(made.grader.grades) == 4


def test_a_client_that_waits_when_the_run_is_stopped_is_told(tmp_path: Path) -> None:
    with served(tmp_path, assessor=ScriptedAssessor(hold=True)) as made:
        made.save("v1")
        replies = []
        thread = threading.Thread(target=lambda: replies.append(made.post({"model_path": "output/v1"})))
        thread.start()
        assert made.assessor.entered.wait(10)
        made.grader.stop()
        thread.join(10)
    assert replies[0].status == 503
    assert replies[0].content["submission_id"] == 1
    assert "stopped" in replies[0].content["error"]


def test_submissions_lists_all_in_order(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        made.post({"model_path": made.save("v1")})
        made.post({"model_path": made.save("v2", raises="unloadable")})
        listed = made.get("/submissions").content["submissions"]
    assert [(row["submission_id"], row["status"]) for row in listed] == [(1, "graded"), (2, "unloadable")]


def test_the_api_document_describes_submit(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        document = made.get("/openapi.json").content
    schema = document["paths"]["/submit"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "model_path" in schema["properties"]


@pytest.mark.parametrize(
    "name", ["content-length: 5\r\ncontent-length: 6", "transfer-encoding: gzip", "x: " + "y" * 100_000]
)
def test_malformed_http_is_answered_and_the_server_lives(shared: Bench, name: str) -> None:
    port = int(shared.url.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(f"POST /run/{SECRET}/submit HTTP/1.1\r\nHost: localhost\r\n{name}\r\n\r\n".encode())
        client.recv(4096)
    assert shared.get("/health").status == 200


def test_sixteen_from_eight_clients_that_obey_retry_after_all_get_their_verdict(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        paths = [made.save(f"different{k}", right=100 + k) for k in range(8)]
        paths += [made.save(f"equal{k}", right=77) for k in range(5)]
        for k in range(3):
            (made.paths.workspace.output / f"broken{k}").mkdir()
            paths.append(f"output/broken{k}")
        replies: list[tuple[int, dict[str, Any]]] = []

        def client(mine: list[str]) -> None:
            for path in mine:
                body = json.dumps({"model_path": path}).encode()
                while (answer := _raw(made, "POST", "/submit", body=body))[0] == 429:
                    time.sleep(int(answer[2]["retry-after"]))
                replies.append(answer[:2])

        threads = [threading.Thread(target=client, args=(paths[k::8],)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made.assessor.contents) == len(set(made.assessor.contents)) == 9
    assert sorted(content["submission_id"] for _, content in replies) == list(range(1, 17))
    assert sorted(status for status, _ in replies) == [200] * 13 + [422] * 3
