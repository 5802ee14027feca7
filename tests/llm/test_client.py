"""The client against a scripted server over real HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from posttrain.llm.client import LlmClient
from posttrain.llm.messages import LlmFailed
from posttrain.llm.settings import LlmSettings
from posttrain.llm.transcript import Transcript
from posttrain.testing.scripted_llm import ScriptedLlm

GOOD = {"json": {"idea": "more steps"}}
KEY = "sk-very-secret"


class Idea(BaseModel):
    idea: str


class Asked:
    """A client, its pauses and its transcript."""

    def __init__(self, url: str, folder: Path, *, remaining: float = 1e6, **settings: Any) -> None:
        self.pauses: list[float] = []
        self.path = folder / "transcript.jsonl"
        self.settings = LlmSettings(model="scripted", base_url=url, **{"api_key": SecretStr(KEY), **settings})
        end = time.monotonic() + remaining
        self.client = LlmClient(
            self.settings,
            transcript=Transcript(self.path, secrets=self.settings.secrets),
            remaining=lambda: end - time.monotonic(),
            sleep=self.pauses.append,
        )

    def ask(self) -> Any:
        return self.client.ask(Idea, system="You train models.", user="What next?", name="propose")

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.path.read_text("utf-8").splitlines()]


def play(steps: Sequence[Mapping[str, Any]]) -> ScriptedLlm:
    return ScriptedLlm({"steps": list(steps), "api_key": KEY})


@pytest.mark.parametrize("stream", [False, True])
def test_a_good_answer_is_validated_and_counted(tmp_path: Path, stream: bool) -> None:
    with play([GOOD | {"usage": {"prompt_tokens": 70, "completion_tokens": 9}}]) as llm:
        asked = Asked(llm.url, tmp_path, stream=stream, price=(2.0, 10.0))
        answer = asked.ask()
    assert answer.value == Idea(idea="more steps")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.repairs) == (70, 9, 0)
    assert answer.usage.cost == pytest.approx((70 * 2 + 9 * 10) / 1e6)
    assert not answer.usage.estimated


@pytest.mark.parametrize(
    "bad",
    [
        {"text": "I would train longer."},
        {"json": {"thought": "none"}},
        {"text": ""},
        {"text": "x", "repeat": 900_000},
        {"text": '{"idea": "cut', "finish_reason": "length"},
    ],
    ids=["prose", "fields", "empty", "huge", "cut"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_fault_goes_back_to_the_model(tmp_path: Path, bad: dict[str, Any], stream: bool) -> None:
    with play([bad, GOOD]) as llm:
        asked = Asked(llm.url, tmp_path, stream=stream)
        answer = asked.ask()
        told = llm.requests[-1].body["messages"][-1]["content"]
    assert (answer.value.idea, answer.repairs, answer.usage.calls) == ("more steps", 1, 2)
    assert "cannot be used" in told


def test_two_repairs_are_the_most(tmp_path: Path) -> None:
    with play([{"text": "no"}] * 4) as llm:
        asked = Asked(llm.url, tmp_path)
        with pytest.raises(LlmFailed) as failed:
            asked.ask()
        assert len(llm.requests) == 3
    assert (failed.value.reason, failed.value.usage.calls) == ("answer", 3)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 429},
        {"hang_up": True},
        {"raw": "<html>gateway</html>"},
        {"raw": '{"choices": []}'},
        {**GOOD, "cut_after": 20},
    ],
    ids=["500", "429", "hang-up", "html", "no-choice", "cut"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_faults_that_may_pass_are_tried_again(tmp_path: Path, fault: dict[str, Any], stream: bool) -> None:
    with play([fault, GOOD]) as llm:
        asked = Asked(llm.url, tmp_path, stream=stream)
        assert asked.ask().value.idea == "more steps"
    assert len(asked.pauses) == 1
    assert "error" in asked.lines()[0]


def test_retry_after_is_kept(tmp_path: Path) -> None:
    with play([{"status": 429, "headers": {"Retry-After": "7"}}, GOOD]) as llm:
        asked = Asked(llm.url, tmp_path)
        asked.ask()
    assert asked.pauses == [7.0]


def test_no_wait_goes_beyond_the_time_that_is_left(tmp_path: Path) -> None:
    with play([{"status": 429, "headers": {"Retry-After": "3600"}}]) as llm:
        asked = Asked(llm.url, tmp_path, remaining=60)
        with pytest.raises(LlmFailed) as failed:
            asked.ask()
    assert (failed.value.reason, asked.pauses) == ("time", [])


@pytest.mark.parametrize("stream", [False, True])
def test_an_endless_drip_ends_with_the_time(tmp_path: Path, stream: bool) -> None:
    with play([GOOD | {"chunk_chars": 1, "chunk_s": 0.2, "delay_s": 0.0 if stream else 30.0}]) as llm:
        asked = Asked(llm.url, tmp_path, remaining=2.0, stream=stream)
        began = time.monotonic()
        with pytest.raises(LlmFailed) as failed:
            asked.ask()
    assert failed.value.reason == "time"
    assert time.monotonic() - began < 4.0


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "refused"), (404, "refused"), (400, "answer"), (413, "too_long")]
)
def test_a_refusal_is_not_tried_again(tmp_path: Path, status: int, reason: str) -> None:
    with play([{"status": status}]) as llm:
        asked = Asked(llm.url, tmp_path)
        with pytest.raises(LlmFailed) as failed:
            asked.ask()
        assert len(llm.requests) == 1
    assert (failed.value.reason, asked.pauses) == (reason, [])


def test_a_wrong_key_is_said_and_not_shown(tmp_path: Path) -> None:
    with play([{"status": 500, "message": f"bad key {KEY}"}, {"text": f"your key is {KEY}"}, GOOD]) as llm:
        asked = Asked(llm.url, tmp_path)
        asked.ask()
    assert KEY not in asked.path.read_text("utf-8")


def test_a_parameter_that_the_server_names_is_left_out(tmp_path: Path) -> None:
    told = "Unsupported value: 'temperature' does not support 0.3"
    with play([{"status": 400, "message": told}, GOOD]) as llm:
        asked = Asked(llm.url, tmp_path, temperature=0.3)
        asked.ask()
        assert "temperature" in llm.requests[0].body
        assert "temperature" not in llm.requests[1].body


def test_arguments_of_a_tool_are_an_answer(tmp_path: Path) -> None:
    with play([{"tool_calls": [{"name": "answer", "arguments": {"idea": "more steps"}}]}]) as llm:
        assert Asked(llm.url, tmp_path).ask().value.idea == "more steps"


def test_no_server_is_a_failure_after_some_tries(tmp_path: Path) -> None:
    asked = Asked("http://127.0.0.1:9/v1", tmp_path)
    with pytest.raises(LlmFailed) as failed:
        asked.ask()
    assert failed.value.reason == "server"
    assert asked.pauses == sorted(asked.pauses)


def test_the_transcript_holds_questions_and_answers(tmp_path: Path) -> None:
    with play([{"text": "no"}, GOOD]) as llm:
        asked = Asked(llm.url, tmp_path)
        asked.ask()
    first, fault, second = asked.lines()
    assert first["answer"] == "no"
    assert "JSON" in fault["fault"]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["usage"]["estimated"] is False


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("before", [0, 170, 280])
def test_no_part_of_a_key_that_a_server_echoes_is_kept(tmp_path: Path, stream: bool, before: int) -> None:
    told = {"error": {"message": "x" * before + KEY}}
    body = f"data: {json.dumps(told)}\n\n" if stream else json.dumps(told)
    with play([{"raw": body, "times": "always"}]) as llm, pytest.raises(LlmFailed) as failed:
        Asked(llm.url, tmp_path, stream=stream).ask()
    assert "sk-v" not in str(failed.value)
    assert "sk-v" not in (tmp_path / "transcript.jsonl").read_text("utf-8")


def test_a_count_of_tokens_beyond_all_numbers_is_none(tmp_path: Path) -> None:
    body = {"choices": [{"message": {"content": '{"idea": "a"}'}}], "usage": {"prompt_tokens": 10**400}}
    with play([{"raw": json.dumps(body)}]) as llm:
        answer = Asked(llm.url, tmp_path, price=(2.0, 10.0)).ask()
    assert answer.usage.estimated
    assert answer.usage.input_tokens < 1000


def test_an_answer_is_worth_more_than_its_record(tmp_path: Path) -> None:
    with play([GOOD]) as llm:
        asked = Asked(llm.url, tmp_path)
        asked.path.mkdir()
        assert asked.ask().value == Idea(idea="more steps")


def test_an_account_without_money_is_a_refusal(tmp_path: Path) -> None:
    refusal = {"status": 402, "message": "Insufficient Balance"}
    with play([refusal]) as llm, pytest.raises(LlmFailed) as failed:
        Asked(llm.url, tmp_path).ask()
    assert failed.value.reason == "refused"
