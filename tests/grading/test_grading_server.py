"""Sockets, ports, peers, floods and logs of the grading server."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grading_kit import SECRET, Bench, served
from posttrain.core.errors import UsageError
from posttrain.grading.app import build_app
from posttrain.grading.client import call
from posttrain.grading.peers import peer_uid
from posttrain.grading.redaction import Redactor
from posttrain.grading.server import GradingServer, base_url, bind_tcp, bind_unix, server_log
from posttrain.grading.verdicts import Terms


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        yield squatter.getsockname()[1]


def test_a_taken_default_port_gives_way_and_says_so(taken: int) -> None:
    made, note = bind_tcp(taken, given=False)
    with made:
        port = made.getsockname()[1]
        assert port != taken
        assert note == f"port {taken} is taken, using {port}"


def test_a_taken_port_that_was_named_is_wrong_use(taken: int) -> None:
    with pytest.raises(UsageError, match=f"--port {taken}"):
        bind_tcp(taken, given=True)


def test_a_free_port_is_taken_as_it_is() -> None:
    first, _ = bind_tcp(0, given=True)
    port = first.getsockname()[1]
    first.close()
    again, note = bind_tcp(port, given=True)
    with again:
        assert again.getsockname() == ("127.0.0.1", port)
        assert note is None


def test_the_port_is_free_again_when_the_server_has_stopped(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        port = int(made.url.split(":")[2].split("/")[0])
        assert made.get("/health").status == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    bind_tcp(port, given=True)[0].close()


def _over_unix(path: Path, endpoint: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("GET", f"/run/{SECRET}{endpoint}", headers={"Host": "127.0.0.1:5000"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content


def test_a_unix_socket_serves_the_same_api(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("stale", "utf-8")
    with served(tmp_path) as made, GradingServer(build_app(made.service, secret=SECRET), [bind_unix(path)]):
        status, content = _over_unix(path, "/health")
    assert (status, content["nonce"]) == (200, "n1")


@pytest.mark.parametrize(("allowed", "status"), [({os.getuid()}, 200), ({os.getuid() + 1}, 403)])
def test_only_the_uids_that_were_named_are_answered(tmp_path: Path, allowed: set[int], status: int) -> None:
    path = tmp_path / "s"
    with served(tmp_path) as made:
        tcp, _ = bind_tcp(0, given=True)
        app = build_app(made.service, secret=SECRET)
        with GradingServer(app, [bind_unix(path), tcp], peer_uids=allowed):
            assert _over_unix(path, "/health")[0] == status
            assert call(base_url(tcp.getsockname()[1], SECRET), "/health").status == status


def test_another_user_on_tcp_is_known_by_the_kernel_s_table(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("connecting as another user needs root")
    listener, _ = bind_tcp(0, given=True)
    connect = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket();"
        "s.connect(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    )
    port = str(listener.getsockname()[1])
    with (
        listener,
        subprocess.Popen([sys.executable, "-c", connect, port], stdin=subprocess.PIPE) as other,
    ):
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            assert peer_uid(connection) == 65534
        other.communicate(b"")


def test_no_log_shows_the_secret(tmp_path: Path) -> None:
    log = tmp_path / "grading_server.log"
    with server_log(log, Redactor((SECRET,))), served(tmp_path) as made:
        made.post({"model_path": made.save("v1")})
        logging.getLogger("uvicorn.error").error("at %s", made.url, exc_info=ValueError(made.url))
        logging.getLogger("posttrain.grading.app").warning("url %s", made.url)
    text = log.read_text("utf-8")
    assert "at http://127.0.0.1" in text
    assert SECRET not in text
    logging.getLogger("uvicorn.error").error("after the run")
    assert "after the run" not in log.read_text("utf-8")


def test_a_bug_in_the_server_is_json_without_a_traceback_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "grading_server.log"
    with server_log(log, Redactor((SECRET,))), served(tmp_path) as made:
        made.grader.terms = Terms(  # a grader whose settings make no sense to it
            split="val",
            baseline=made.grader.terms.baseline,
            limits=made.grader.terms.limits,
            max_submissions=None,  # type: ignore[arg-type]
        )
        reply = made.post({"model_path": made.save("v1")})
        assert made.get("/health").status == 200
    assert reply.status == 503
    assert "Traceback" not in reply.text()
    assert "Traceback" in log.read_text("utf-8")


def _health_while(made: Bench, attack: threading.Thread) -> list[float]:
    """Seconds of each GET /health, one after the other, until the attack ends."""
    port = int(made.url.split(":")[2].split("/")[0])
    taken: list[float] = []
    attack.start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while attack.is_alive() or len(taken) < 20:
        begun = time.perf_counter()
        connection.request("GET", f"/run/{SECRET}/health")
        answer = connection.getresponse()
        answer.read()
        taken.append(time.perf_counter() - begun)
        assert answer.status == 200
        time.sleep(0.005)
    connection.close()
    return taken


FLOOD = """
import http.client, sys, threading, collections
port, prefix, requests, threads, size = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
body = b'{"model_path": "output/none"}' if size == 0 else b"x" * size
seen = collections.Counter()
def attack(count):
    for _ in range(count):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", prefix + "/submit", body=body)
            seen[connection.getresponse().status] += 1
        except OSError as error:
            seen[type(error).__name__] += 1
        finally:
            connection.close()
workers = [threading.Thread(target=attack, args=(requests // threads,)) for _ in range(threads)]
[w.start() for w in workers]; [w.join() for w in workers]
print(dict(seen))
"""


def _flood(made: Bench, *, requests: int, threads: int, size: int, seen: list[str]) -> threading.Thread:
    port = made.url.split(":")[2].split("/")[0]
    argv = [port, f"/run/{SECRET}", str(requests), str(threads), str(size)]

    def attack() -> None:
        ended = subprocess.run(
            [sys.executable, "-c", FLOOD, *argv], capture_output=True, text=True, timeout=120
        )
        seen.append(ended.stdout.strip() or ended.stderr[-500:])

    return threading.Thread(target=attack)


@pytest.mark.parametrize(
    ("requests", "threads", "size"),
    [(400, 16, 0), pytest.param(2000, 40, 0, marks=pytest.mark.slow)],
)
def test_a_flood_of_requests_leaves_health_quick_and_changes_nothing(
    tmp_path: Path, requests: int, threads: int, size: int
) -> None:
    seen: list[str] = []
    with served(tmp_path) as made:
        times = _health_while(made, _flood(made, requests=requests, threads=threads, size=size, seen=seen))
        assert made.grader.total == 0
        assert made.post({"model_path": made.save("v1")}).status == 200
    assert seen == [str({400: requests})]
    assert statistics.quantiles(times, n=100)[98] <= 0.2


@pytest.mark.parametrize(
    ("requests", "size"), [(8, 50 << 20), pytest.param(64, 50 << 20, marks=pytest.mark.slow)]
)
def test_bodies_of_50_mb_are_answered_and_leave_health_quick(
    tmp_path: Path, requests: int, size: int
) -> None:
    seen: list[str] = []
    with served(tmp_path) as made:
        times = _health_while(made, _flood(made, requests=requests, threads=4, size=size, seen=seen))
    assert seen == [str({413: requests})]
    assert statistics.quantiles(times, n=100)[98] <= 0.2


def test_a_kept_connection_does_not_wait_for_delayed_acknowledgements(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        times = _health_while(made, threading.Thread(target=time.sleep, args=(0.2,)))
    assert statistics.median(times) < 0.03


def test_more_connections_than_the_lab_can_spare_are_turned_away(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        port = int(made.url.split(":")[2].split("/")[0])
        held = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(300)]
        time.sleep(0.3)
        assert made.get("/health").status == 503
        for connection in held:
            connection.close()
        time.sleep(0.3)
        assert made.get("/health").status == 200
