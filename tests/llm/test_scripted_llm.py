"""The scripted LLM, asked over real HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from posttrain.core.errors import UsageError
from posttrain.testing.scripted_llm import ScriptedLlm


def ask(llm: ScriptedLlm, text: str = "hello", **more: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]} | more
    return httpx.post(f"{llm.url}/chat/completions", json=body, timeout=10, verify=False)


def words(answer: httpx.Response) -> str:
    content = answer.json()["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def events(answer: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_steps_answer_in_order_and_the_end_of_the_script_is_told() -> None:
    with ScriptedLlm([{"text": "one"}, {"text": "two", "times": 2}]) as llm:
        assert [words(ask(llm)) for _ in range(3)] == ["one", "two", "two"]
        ended = ask(llm)
    assert ended.status_code == 404
    assert "no step for request 4" in ended.json()["error"]["message"]
    assert [asked.step for asked in llm.requests] == [1, 2, 2, None]


def test_a_keyed_step_answers_the_same_request_alike_every_time() -> None:
    script = [{"when": ["plan", "boolean"], "text": "A"}, {"when_last": "记录", "text": "B"}, {"text": "C"}]
    with ScriptedLlm(script) as llm:
        assert [words(ask(llm, "a plan for boolean")) for _ in range(2)] == ["A", "A"]
        history = [
            {"role": "user", "content": "a plan"},
            {"role": "assistant", "content": "记录"},
            {"role": "user", "content": [{"type": "text", "text": "请记录"}]},
        ]
        assert words(ask(llm, messages=history)) == "B"
        assert words(ask(llm, "else")) == "C"


def test_a_value_is_answered_as_text_or_as_the_tool_that_must_be_called() -> None:
    tool = {"type": "function", "function": {"name": "final_result", "parameters": {}}}
    with ScriptedLlm([{"json": {"idea": "lr"}, "times": "always"}]) as llm:
        assert json.loads(words(ask(llm))) == {"idea": "lr"}
        forced = ask(llm, tools=[tool], tool_choice="required").json()["choices"][0]
    assert forced["finish_reason"] == "tool_calls"
    assert forced["message"]["tool_calls"][0]["function"] == {
        "name": "final_result",
        "arguments": '{"idea": "lr"}',
    }


def test_a_stream_puts_together_what_the_whole_answer_says() -> None:
    call = {"name": "shell", "arguments": {"command": "ls 数据"}}
    step = {"text": "look at the data", "tool_calls": [call], "chunk_chars": 3, "times": "always"}
    with ScriptedLlm([step]) as llm:
        whole = ask(llm).json()
        parts = events(ask(llm, stream=True, stream_options={"include_usage": True}))
    deltas = [part["choices"][0]["delta"] for part in parts[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "look at the data"
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == call["arguments"]
    assert parts[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert parts[-1]["usage"] == whole["usage"]


PARTS = {
    "responses": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "look, 请"}]}]},
    "messages": {"messages": [{"role": "user", "content": [{"type": "text", "text": "look, 请"}]}]},
}


def named_events(answer: httpx.Response) -> list[Any]:
    found = [event.split("\n", 1) for event in answer.text.split("\n\n") if event]
    loaded = [json.loads(data.removeprefix("data: ")) for _, data in found]
    assert [name.removeprefix("event: ") for name, _ in found] == [event["type"] for event in loaded]
    return loaded


def test_the_responses_api_plays_the_same_script() -> None:
    call = {"name": "shell", "arguments": {"command": "ls 数据"}}
    step = {"when_last": "look, 请", "text": "I look.", "tool_calls": [call], "chunk_chars": 3}
    with ScriptedLlm([step]) as llm:
        whole = httpx.post(f"{llm.url}/responses", json=PARTS["responses"], verify=False).json()
        body = PARTS["responses"] | {"stream": True}
        parts = named_events(httpx.post(f"{llm.url}/responses", json=body, verify=False))
    message, called = whole["output"]
    assert message["content"][0]["text"] == "I look."
    assert json.loads(called["arguments"]) == call["arguments"]
    assert parts[-1]["response"]["output"] == [
        message | {"id": "msg_2"},
        called | {"id": "fc_2_0", "call_id": "call_2_0"},
    ]
    spoken = [part["delta"] for part in parts if part["type"] == "response.output_text.delta"]
    assert "".join(spoken) == "I look."
    assert whole["usage"]["output_tokens"] > 0


def test_anthropics_messages_play_the_same_script() -> None:
    call = {"name": "Bash", "arguments": {"command": "ls 数据"}}
    step = {"when_last": "look, 请", "text": "I look.", "tool_calls": [call], "chunk_chars": 3}
    script = {"steps": [step, {"json": {"a": 1}}], "api_key": "k"}
    key = {"x-api-key": "k"}
    with ScriptedLlm(script) as llm:
        whole = httpx.post(f"{llm.url}/messages", json=PARTS["messages"], headers=key, verify=False).json()
        body = PARTS["messages"] | {"stream": True}
        parts = named_events(httpx.post(f"{llm.url}/messages", json=body, headers=key, verify=False))
        forced = {"tools": [{"name": "answer"}], "tool_choice": {"type": "any"}}
        body = forced | {"messages": [{"role": "user", "content": "else"}]}
        tool = httpx.post(f"{llm.url}/messages", json=body, headers=key, verify=False).json()
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use"]
    assert whole["stop_reason"] == "tool_use"
    pieces = [part["delta"] for part in parts if part["type"] == "content_block_delta"]
    assert "".join(piece.get("text", "") for piece in pieces) == "I look."
    assert json.loads("".join(piece.get("partial_json", "") for piece in pieces)) == call["arguments"]
    assert parts[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert tool["content"] == [{"type": "tool_use", "id": "toolu_3_0", "name": "answer", "input": {"a": 1}}]


def test_googles_generate_content_plays_the_same_script() -> None:
    call = {"name": "run_shell_command", "arguments": {"command": "ls 数据"}}
    step = {"when_last": "look, 请", "text": "I look.", "tool_calls": [call], "chunk_chars": 3}
    body = {"contents": [{"role": "user", "parts": [{"text": "look, 请"}]}]}
    with ScriptedLlm([step]) as llm:
        at = f"{llm.url.removesuffix('/v1')}/v1beta/models/gemini-x"
        whole = httpx.post(f"{at}:generateContent", json=body, verify=False).json()
        streamed = httpx.post(f"{at}:streamGenerateContent?alt=sse", json=body, verify=False).text
        counted = httpx.post(f"{at}:countTokens", json=body, verify=False).json()
    parts = whole["candidates"][0]["content"]["parts"]
    assert parts[0]["text"] == "I look."
    assert parts[1]["functionCall"]["args"] == call["arguments"]
    events = [json.loads(event.removeprefix("data: ")) for event in streamed.split("\n\n") if event]
    said = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    assert "".join(part.get("text", "") for part in said) == "I look."
    assert said[-1]["functionCall"]["name"] == "run_shell_command"
    assert events[-1]["candidates"][0]["finishReason"] == "STOP"
    assert whole["modelVersion"] == "gemini-x"
    assert counted["totalTokens"] > 0


def test_usage_is_the_scripts_or_a_token_for_four_characters() -> None:
    stated = {"prompt_tokens": 7, "completion_tokens": 5}
    with ScriptedLlm([{"text": "12345678"}, {"text": "x", "usage": stated}]) as llm:
        assert ask(llm, "123").json()["usage"] == {
            "prompt_tokens": 1,
            "completion_tokens": 2,
            "total_tokens": 3,
        }
        assert ask(llm).json()["usage"] == stated | {"total_tokens": 12}


def test_an_http_error_carries_its_headers_and_leaves_the_connection_usable() -> None:
    script = [
        {"status": 429, "headers": {"Retry-After": "1"}, "message": "slow down"},
        {"status": 500},
        {"text": "ok"},
    ]
    with ScriptedLlm(script) as llm, httpx.Client(verify=False) as client:
        body = {"messages": [{"role": "user", "content": "x"}]}
        answers = [client.post(f"{llm.url}/chat/completions", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 500, 200]
    assert answers[0].headers["retry-after"] == "1"
    assert answers[0].json()["error"] | {"param": None} == {
        "message": "slow down",
        "type": "rate_limit_error",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", [{"text": "word " * 100, "cut_after": 200}, {"hang_up": True}])
def test_a_cut_connection_is_cut_in_the_middle(how: dict[str, Any], stream: bool) -> None:
    with ScriptedLlm([how]) as llm, pytest.raises(httpx.RemoteProtocolError):
        ask(llm, stream=stream)


def test_malformed_bodies_and_arguments_arrive_as_they_are_written() -> None:
    script = [
        {"raw": '{"choices": [{'},
        {"text": '{"idea": '},
        {"tool_calls": [{"name": "t", "arguments": "{oops"}]},
    ]
    with ScriptedLlm(script) as llm:
        assert ask(llm).text == '{"choices": [{'
        assert words(ask(llm)) == '{"idea": '
        assert ask(llm).json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{oops"


def test_an_over_long_answer_is_as_long_as_it_says() -> None:
    with ScriptedLlm([{"text": "ab", "repeat": 100_000, "finish_reason": "length"}]) as llm:
        answer = ask(llm)
    assert len(words(answer)) == 200_000
    assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_a_slow_stream_takes_its_time_and_a_slow_answer_ends_with_the_server() -> None:
    with ScriptedLlm([{"text": "abcd", "chunk_chars": 1, "chunk_s": 0.05}]) as llm:
        began = time.monotonic()
        ask(llm, stream=True)
        assert time.monotonic() - began > 0.2
    began = time.monotonic()
    with ThreadPoolExecutor() as pool, ScriptedLlm([{"text": "late", "delay_s": 3600}]) as llm:
        asked = pool.submit(ask, llm)
        while not llm.requests:
            time.sleep(0.01)
    assert words(asked.result()) == "late"
    assert time.monotonic() - began < 5


def test_requests_at_once_use_up_each_step_once() -> None:
    script = [{"text": str(number)} for number in range(32)]
    with ScriptedLlm(script) as llm, ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: words(ask(llm)), range(32)))
    assert sorted(map(int, told)) == list(range(32))
    assert [asked.number for asked in llm.requests] == list(range(1, 33))


def test_models_are_listed_and_a_wrong_key_is_refused() -> None:
    script = {"steps": [{"text": "x"}], "models": ["gpt-5.2"], "api_key": "s3cret"}
    with ScriptedLlm(script) as llm:
        right = {"Authorization": "Bearer s3cret"}
        listed = httpx.get(f"{llm.url}/models", headers=right).json()
        assert [model["id"] for model in listed["data"]] == ["gpt-5.2"]
        assert httpx.get(f"{llm.url}/models").status_code == 401
        assert ask(llm).status_code == 401


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"messages": []}', b'{"messages": "x"}', b'{"messages": [1]}', b"\xff" * 9]
)
def test_what_is_no_request_is_answered_400_and_uses_up_no_step(body: bytes) -> None:
    with ScriptedLlm([{"text": "still there"}]) as llm:
        assert httpx.post(f"{llm.url}/chat/completions", content=body).status_code == 400
        assert httpx.post(f"{llm.url}/embeddings", json={}).status_code == 404
        assert words(ask(llm)) == "still there"


_ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "input": "x", "contents": [{}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"tool_choice": {"function": "f"}}),
        ("chat/completions", {"tool_choice": "required", "tools": ["a"]}),
        ("chat/completions", {"messages": [{"role": ["a"]}]}),
        ("responses", {"tool_choice": "required", "tools": 5}),
        ("messages", {"tool_choice": {"type": "tool"}}),
        (
            "models/m:generateContent",
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}, "tools": [1]},
        ),
    ],
)
def test_a_request_of_wrong_types_is_answered_400(path: str, body: dict[str, Any]) -> None:
    with ScriptedLlm([{"text": "still there"}]) as llm:
        assert httpx.post(f"{llm.url}/{path}", json=_ASKED | body).status_code == 400
        assert words(ask(llm)) == "still there"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1 is no JSON"),
        ("[1, 2", "line 1 is no JSON"),
        ("7", "neither a list of steps nor an object"),
        ("[]", "steps: "),
        ('{"steps": [{"text": "a"}], "model": "x"}', "model: there is no such field"),
        ('[{"text": "a"}, {"txt": "b"}]', "step 2: txt: there is no such field"),
        ('[{"text": "a", "status": 500}]', "step 1: give one of"),
        ("[{}]", "step 1: give one of"),
        ('[{"status": 200}]', "step 1: status: "),
        ('[{"text": "a", "times": 0}]', "step 1: times"),
        ('[{"text": "a", "when": ""}]', "step 1: when.0: "),
        ('[{"tool_calls": [{"arguments": {}}]}]', "step 1: tool_calls.0.name: Field required"),
        ("[" * 100_000, "script.json: "),
    ],
)
def test_a_bad_script_is_one_line_that_names_step_and_field(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError) as refused:
        ScriptedLlm(path)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_as_a_program_it_prints_its_address_first_and_logs_requests(tmp_path: Path) -> None:
    script, log = tmp_path / "剧本.json", tmp_path / "log.jsonl"
    script.write_bytes(b"\xef\xbb\xbf" + '[{"text": "你好"}]\r\n'.encode())
    argv = [sys.executable, "-m", "posttrain.testing.scripted_llm", str(script), "--log", str(log)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        body = {"messages": [{"role": "user", "content": "在吗"}]}
        answer = httpx.post(f"{url}/chat/completions", json=body)
        server.terminate()
        assert server.wait(10) == 0
    assert words(answer) == "你好"
    assert json.loads(log.read_text("utf-8"))["body"] == body


def test_as_a_program_it_refuses_a_bad_script_with_a_line_and_2(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "posttrain.testing.scripted_llm", str(tmp_path / "absent.json")]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"{tmp_path}/absent.json: No such file or directory\n"


@pytest.mark.parametrize("header", [{"X-A": "a\nb"}, {"X-A": "…"}, {"X A": "b"}])
def test_a_header_that_http_cannot_carry_is_refused_with_the_script(header: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="step 1: headers"):
        ScriptedLlm([{"text": "x", "headers": header}])
