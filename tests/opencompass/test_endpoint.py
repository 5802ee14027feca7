"""The endpoint in front of an engine: waves are batched the same whatever comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from posttrain.core.errors import WorkerDied
from posttrain.core.scores import Output
from posttrain.grading.endpoint import Endpoint, Question
from posttrain.grading.server import GradingServer, bind_tcp

KEY = "k" * 20
Answer = Callable[[Sequence[Question]], Sequence[Output]]


def echo(questions: Sequence[Question]) -> list[Output]:
    return [Output(text=f"<{question.turns[-1].content}>", tokens=3) for question in questions]


@contextmanager
def served(
    answer: Answer, *, expected: int, wave: int, place: Callable[[Question], int] = lambda _: 0
) -> Iterator[tuple[Endpoint, httpx.Client]]:
    listener, _ = bind_tcp(0, given=True)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    endpoint = Endpoint(answer, expected=expected, wave=wave, key=KEY, place=place)
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        endpoint,
        GradingServer(endpoint, [listener]),
        httpx.Client(base_url=base, headers=headers, timeout=20, trust_env=False) as client,
    ):
        yield endpoint, client


def ask(client: httpx.Client, text: str, **more: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    return client.post("/v1/chat/completions", json=body)


def ask_all(client: httpx.Client, texts: Sequence[str]) -> list[str]:
    with ThreadPoolExecutor(len(texts)) as pool:
        replies = list(pool.map(lambda text: ask(client, text), texts))
    return [reply.json()["choices"][0]["message"]["content"] for reply in replies]


def test_a_wave_is_one_batch_in_an_order_of_its_own() -> None:
    waves: list[list[str]] = []

    def answer(questions: Sequence[Question]) -> list[Output]:
        waves.append([question.turns[-1].content for question in questions])
        return echo(questions)

    texts = [f"question {index}" for index in range(12)]
    for order in (texts, texts[::-1]):
        with served(answer, expected=12, wave=12) as (endpoint, client):
            assert ask_all(client, order) == [f"<{text}>" for text in order]
            assert not endpoint.served.by_arrival
    assert len(waves) == 2
    assert waves[0] == waves[1]


def test_questions_stand_in_the_order_they_are_given() -> None:
    waves: list[list[str]] = []

    def answer(questions: Sequence[Question]) -> list[Output]:
        waves.append([question.turns[-1].content for question in questions])
        return echo(questions)

    with served(answer, expected=3, wave=3, place=lambda asked: int(asked.turns[-1].content)) as (_, client):
        ask_all(client, ["30", "4", "100"])
    assert waves == [["4", "30", "100"]]


def test_what_is_left_over_is_a_wave_of_its_own() -> None:
    sizes: list[int] = []

    def answer(questions: Sequence[Question]) -> list[Output]:
        sizes.append(len(questions))
        return echo(questions)

    with served(answer, expected=7, wave=4) as (endpoint, client):
        ask_all(client, ["a", "b", "c", "d"])
        ask_all(client, ["e", "f", "g"])
        assert not endpoint.served.by_arrival
    assert sizes == [4, 3]


def test_requests_one_by_one_are_answered_and_marked() -> None:
    with served(echo, expected=2, wave=2) as (endpoint, client):
        assert ask(client, "alone").json()["choices"][0]["message"]["content"] == "<alone>"
        assert endpoint.served.by_arrival


def test_an_engine_that_dies_refuses_everybody_from_then_on() -> None:
    def answer(questions: Sequence[Question]) -> list[Output]:
        raise WorkerDied("out of memory")

    with served(answer, expected=1, wave=1) as (endpoint, client):
        first, second = ask(client, "a"), ask(client, "b")
        assert (first.status_code, second.status_code) == (503, 503)
        assert "out of memory" in first.json()["error"]["message"]
        assert isinstance(endpoint.failure, WorkerDied)


def test_a_bug_behind_the_endpoint_is_an_answer_and_no_endless_wait() -> None:
    """For example a progress line that a closed terminal does not take."""

    def answer(questions: Sequence[Question]) -> list[Output]:
        raise BrokenPipeError("the terminal is gone")

    with served(answer, expected=1, wave=1) as (endpoint, client):
        reply = ask(client, "a")
        assert reply.status_code == 503
        assert "the terminal is gone" in reply.json()["error"]["message"]
        assert endpoint.failure is not None


def test_no_stop_is_what_clients_send_who_have_none() -> None:
    with served(echo, expected=1, wave=1) as (_, client):
        assert ask(client, "a", stop=None, n=1, stream=False, logprobs=False).status_code == 200


def test_a_stranger_without_the_key_is_refused() -> None:
    with served(echo, expected=1, wave=1) as (endpoint, client):
        reply = client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "a"}]},
            headers={"Authorization": "Bearer wrong"},
        )
        assert reply.status_code == 401
        assert endpoint.served.count == 0


MALFORMED: dict[str, Any] = {
    "not JSON": b"{",
    "no messages": {"messages": []},
    "several answers": {"messages": [{"role": "user", "content": "a"}], "n": 2},
    "a stream": {"messages": [{"role": "user", "content": "a"}], "stream": True},
    "likelihoods": {"messages": [{"role": "user", "content": "a"}], "logprobs": True},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "a role of its own": {"messages": [{"role": "tool", "content": "a"}]},
    "stops of its own": {"messages": [{"role": "user", "content": "a"}], "stop": ["\n"]},
    "no tokens": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 0},
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_what_the_engine_cannot_do_is_a_400_that_names_the_field(kind: str) -> None:
    body = MALFORMED[kind]
    with served(echo, expected=1, wave=1) as (endpoint, client):
        sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        reply = client.post("/v1/chat/completions", **sent)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"]
        assert endpoint.served.count == 0


def test_only_completions_are_served() -> None:
    with served(echo, expected=1, wave=1) as (_, client):
        assert client.get("/v1/models").status_code == 404


def test_an_empty_answer_is_said_to_have_ended_by_itself() -> None:
    """OpenCompass asks again for an empty text that was cut."""
    with served(lambda asked: [Output(text="", tokens=5, cut=True)], expected=1, wave=1) as (_, client):
        assert ask(client, "a").json()["choices"][0]["finish_reason"] == "stop"


def test_chinese_and_long_questions_arrive_as_they_are() -> None:
    text = "小明有多少个苹果？\r\n" + "很长" * 50_000
    with served(echo, expected=1, wave=1) as (_, client):
        assert ask(client, text).json()["choices"][0]["message"]["content"] == f"<{text}>"


def test_a_client_that_hangs_up_does_not_stop_the_wave() -> None:
    begun, go = threading.Event(), threading.Event()

    def answer(questions: Sequence[Question]) -> list[Output]:
        begun.set()
        go.wait(10)
        return echo(questions)

    with served(answer, expected=2, wave=1) as (endpoint, client):
        with pytest.raises(httpx.TimeoutException):
            client.post(
                "/v1/chat/completions",
                json={"messages": [{"role": "user", "content": "a"}]},
                timeout=0.3,
            )
        assert begun.wait(5)
        go.set()
        assert ask(client, "b").json()["choices"][0]["message"]["content"] == "<b>"
        assert endpoint.failure is None
