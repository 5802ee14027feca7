"""Variables in, settings out."""

from __future__ import annotations

import pytest

from posttrain.core.errors import UsageError
from posttrain.llm.settings import LlmSettings

LOCAL = {"CHAT_MODEL": "Qwen/Qwen2.5-7B", "OPENAI_API_BASE": "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(
    ("env", "provider", "model"),
    [
        ({"CHAT_MODEL": "gpt-5.2", "OPENAI_API_KEY": "k"}, "openai", "gpt-5.2"),
        ({"CHAT_MODEL": "openai/gpt-5.2", "OPENAI_API_KEY": "k"}, "openai", "gpt-5.2"),
        (LOCAL, "openai", "Qwen/Qwen2.5-7B"),
        ({"CHAT_MODEL": "claude-sonnet-4-6", "ANTHROPIC_API_KEY": "k"}, "anthropic", "claude-sonnet-4-6"),
        ({"CHAT_MODEL": "anthropic/claude-x", "ANTHROPIC_API_KEY": "k"}, "anthropic", "claude-x"),
        ({"CHAT_MODEL": "gemini/gemini-2.5-pro", "GEMINI_API_KEY": "k"}, "google", "gemini-2.5-pro"),
        ({"CHAT_MODEL": "gemini-2.5-pro", "GOOGLE_API_KEY": "k"}, "google", "gemini-2.5-pro"),
        (LOCAL | {"CHAT_MODEL": "claude-proxy"}, "openai", "claude-proxy"),
    ],
)
def test_the_name_of_the_model_chooses_the_provider(env: dict[str, str], provider: str, model: str) -> None:
    settings = LlmSettings.from_environment(env)
    assert (settings.provider, settings.model) == (provider, model)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, "CHAT_MODEL is not set"),
        ({"CHAT_MODEL": " "}, "CHAT_MODEL is not set"),
        ({"CHAT_MODEL": "gpt-5.2"}, "OPENAI_API_KEY is not set"),
        ({"CHAT_MODEL": "claude-x"}, "ANTHROPIC_API_KEY is not set"),
        (LOCAL | {"OPENAI_API_BASE": "localhost:8000"}, "OPENAI_API_BASE"),
        (LOCAL | {"OPENAI_API_BASE": "http://[::1/v1"}, "OPENAI_API_BASE"),
        (LOCAL | {"OPENAI_API_KEY": "…"}, "OPENAI_API_KEY"),
        (LOCAL | {"OPENAI_API_KEY": "sk-a\nb"}, "OPENAI_API_KEY"),
        (LOCAL | {"CHAT_TEMPERATURE": "warm"}, "CHAT_TEMPERATURE"),
        (LOCAL | {"CHAT_TEMPERATURE": "nan"}, "CHAT_TEMPERATURE"),
        (LOCAL | {"CHAT_STREAM": "perhaps"}, "CHAT_STREAM"),
        (LOCAL | {"CHAT_PRICE": "1.25"}, "CHAT_PRICE"),
        (LOCAL | {"CHAT_MAX_TOKENS": "0"}, "CHAT_MAX_TOKENS"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(env: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        LlmSettings.from_environment(env)


def test_variables_without_effect_are_named() -> None:
    env = LOCAL | {"BACKEND": "rdagent.oai.backend.LiteLLMAPIBackend", "EMBEDDING_MODEL": "text-embedding-3"}
    assert LlmSettings.from_environment(env).unused == ("BACKEND", "EMBEDDING_MODEL")


def test_no_key_shows_up_in_a_printed_object() -> None:
    settings = LlmSettings.from_environment({"CHAT_MODEL": "gpt-5.2", "OPENAI_API_KEY": "sk-secret"})
    assert "sk-secret" not in repr(settings) + settings.model_dump_json()
