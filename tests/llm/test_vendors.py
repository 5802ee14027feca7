"""Anthropic's and Google's dialects, against a server that speaks them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from posttrain.llm.client import LlmClient
from posttrain.llm.messages import LlmFailed
from posttrain.llm.settings import LlmSettings, ProviderName

pytest.importorskip("pydantic_ai", reason="the extra llm is not installed")

Reply = tuple[int, dict[str, str], Any]
TEXT = '{"idea": "more steps"}'


class Idea(BaseModel):
    idea: str


def claude(text: str) -> Any:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": text}],
        "usage": {"input_tokens": 70, "output_tokens": 9},
    }  # fmt: skip


def gemini(text: str) -> Any:
    return {
        "candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 70, "candidatesTokenCount": 9, "totalTokenCount": 79},
        "modelVersion": "gemini-x",
    }  # fmt: skip


SPOKEN: dict[ProviderName, Callable[[str], Any]] = {"anthropic": claude, "google": gemini}


class Vendor:
    """Answers in order; keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[Any] = []
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                vendor.asked.append(json.loads(raw))
                status, headers, content = vendor.replies.pop(0)
                body = json.dumps(content).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    vendor = Vendor()
    thread = threading.Thread(target=vendor.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield vendor
    vendor.server.shutdown()
    vendor.server.server_close()


def client(vendor: Vendor, provider: ProviderName, pauses: list[float]) -> LlmClient:
    settings = LlmSettings(
        model="some-model", provider=provider, base_url=vendor.url, api_key=SecretStr("k"), temperature=0.2
    )
    return LlmClient(settings, sleep=pauses.append)


def ask(asking: LlmClient) -> Any:
    return asking.ask(Idea, system="You train models.", user="What next?", name="propose")


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_an_answer_is_repaired_validated_and_counted(vendor: Vendor, provider: ProviderName) -> None:
    speak = SPOKEN[provider]
    vendor.replies = [(200, {}, speak("I would train longer.")), (200, {}, speak(TEXT))]
    answer = ask(client(vendor, provider, []))
    assert (answer.value.idea, answer.repairs) == ("more steps", 1)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (140, 18)
    assert "You train models." in json.dumps(vendor.asked[0])
    assert "cannot be used" in json.dumps(vendor.asked[1])


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_a_busy_vendor_is_asked_again(vendor: Vendor, provider: ProviderName) -> None:
    busy = {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}
    vendor.replies = [(429, {"Retry-After": "3"}, busy), (200, {}, SPOKEN[provider](TEXT))]
    pauses: list[float] = []
    assert ask(client(vendor, provider, pauses)).value.idea == "more steps"
    assert len(pauses) == 1


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_a_wrong_key_is_a_refusal(vendor: Vendor, provider: ProviderName) -> None:
    vendor.replies = [(401, {}, {"error": {"code": 401, "message": "bad key", "status": "UNAUTHENTICATED"}})]
    with pytest.raises(LlmFailed) as failed:
        ask(client(vendor, provider, []))
    assert failed.value.reason == "refused"


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "from posttrain.llm.client import LlmClient; from posttrain.llm.settings import LlmSettings\n"
        "LlmClient(LlmSettings.from_environment({'CHAT_MODEL': 'claude-x', 'ANTHROPIC_API_KEY': 'k'}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs the extra 'llm': pip install 'posttrain[llm]'" in ended.stderr.splitlines()[-1]
