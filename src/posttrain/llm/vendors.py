"""Anthropic's and Google's models through pydantic-ai, which knows their dialects (extra `llm`)."""

from __future__ import annotations

from typing import Any

from posttrain.core.errors import MissingExtra
from posttrain.llm.messages import Completion, LlmFailed, Message, Unavailable
from posttrain.llm.settings import LlmSettings

_PASSING = (408, 409, 425, 429)
_POINTLESS = (401, 402, 403, 404)


class VendorModel:
    """One model of a vendor."""

    def __init__(self, settings: LlmSettings) -> None:
        try:
            import pydantic_ai  # noqa: F401
        except ImportError as error:
            raise MissingExtra("llm", f"CHAT_MODEL={settings.model} ({settings.provider})") from error
        self._settings = settings

    async def complete(self, messages: tuple[Message, ...], *, timeout_s: float) -> Completion:
        from pydantic_ai import direct
        from pydantic_ai.exceptions import (
            ModelAPIError,
            ModelContextWindowExceededError,
            ModelHTTPError,
            UnexpectedModelBehavior,
            UserError,
        )

        asked = {"model_settings": self._model_settings(timeout_s)}
        try:
            model = self._model()
            if not self._settings.stream:
                return _completion(await direct.model_request(model, _history(messages), **asked))
            async with direct.model_request_stream(model, _history(messages), **asked) as stream:
                async for _ in stream:
                    pass
                return _completion(stream.get())
        except ModelContextWindowExceededError as error:
            raise LlmFailed(f"{self._settings.provider}: {error}", reason="too_long") from error
        except ModelHTTPError as error:
            raise _fault(error, self._settings) from error
        except ModelAPIError as error:
            raise Unavailable(f"{self._settings.provider}: {error}") from error
        except UnexpectedModelBehavior as error:
            raise Unavailable(f"{self._settings.provider} answered nonsense: {error}") from error
        except UserError as error:
            raise LlmFailed(f"{self._settings.provider}: {error}", reason="refused") from error

    def _model_settings(self, timeout_s: float) -> Any:
        settings = self._settings
        asked: dict[str, Any] = {"max_tokens": settings.max_answer_tokens, "timeout": timeout_s}
        return asked if settings.temperature is None else asked | {"temperature": settings.temperature}

    def _model(self) -> Any:
        """A model with a client of its own: clients are bound to the event loop of one call."""
        settings = self._settings
        key = settings.api_key.get_secret_value() if settings.api_key else "none"
        if settings.provider == "anthropic":
            from anthropic import AsyncAnthropic
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            # no tries of its own: ours are bounded by the time that is left
            client = AsyncAnthropic(api_key=key, base_url=settings.base_url, max_retries=0)
            return AnthropicModel(settings.model, provider=AnthropicProvider(anthropic_client=client))
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key=key, base_url=settings.base_url)
        return GoogleModel(settings.model, provider=provider)


def _history(messages: tuple[Message, ...]) -> list[Any]:
    from pydantic_ai import messages as parts

    history: list[Any] = []
    for message in messages:
        if message.role == "assistant":
            history.append(parts.ModelResponse(parts=[parts.TextPart(content=message.content)]))
            continue
        kind = parts.SystemPromptPart if message.role == "system" else parts.UserPromptPart
        part = kind(content=message.content)
        if history and isinstance(history[-1], parts.ModelRequest):
            history[-1] = parts.ModelRequest(parts=[*history[-1].parts, part])
        else:
            history.append(parts.ModelRequest(parts=[part]))
    return history


def _completion(response: Any) -> Completion:
    text = "".join(part.content for part in response.parts if part.part_kind == "text")
    usage = response.usage
    return Completion(
        text=text,
        cut=response.finish_reason == "length",
        input_tokens=usage.input_tokens or None,
        output_tokens=usage.output_tokens or None,
    )


def _fault(error: Any, settings: LlmSettings) -> Exception:
    """Whether another try can help."""
    text = f"HTTP {error.status_code} from the model's server: {settings.shown(str(error), 300)}"
    if error.status_code in _PASSING or error.status_code >= 500:
        stated = (error.headers or {}).get("retry-after", "")
        after = float(stated) if stated.replace(".", "", 1).isdecimal() else None
        return Unavailable(text, retry_after_s=after)
    return LlmFailed(text, reason="refused" if error.status_code in _POINTLESS else "answer")
