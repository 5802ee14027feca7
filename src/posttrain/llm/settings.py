"""Which driver model, where, and how to ask it: the variables that RD-Agent's users know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.llm.transcript import HIDDEN

ProviderName = Literal["openai", "anthropic", "google"]

OPENAI_BASE = "https://api.openai.com/v1"
_UNUSED = ("BACKEND", "EMBEDDING_MODEL")
_PREFIXES: dict[str, ProviderName] = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "google-gla": "google",
    "gemini": "google",
}
_FAMILIES: dict[str, ProviderName] = {"claude": "anthropic", "gemini": "google"}
_KEYS: dict[ProviderName, tuple[str, ...]] = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}
_BASES: dict[ProviderName, tuple[str, ...]] = {
    "openai": ("OPENAI_API_BASE", "OPENAI_BASE_URL"),
    "anthropic": ("ANTHROPIC_BASE_URL",),
    "google": ("GOOGLE_GEMINI_BASE_URL",),
}
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}

VARIABLES = (
    "CHAT_MODEL",
    "CHAT_TEMPERATURE",
    "CHAT_STREAM",
    "CHAT_MAX_TOKENS",
    "CHAT_TIMEOUT_S",
    "CHAT_PRICE",
    *(name for names in (*_KEYS.values(), *_BASES.values()) for name in names),
    *_UNUSED,
)
"""Every variable that is looked at; what an agent that uses this package asks to be passed."""


class LlmSettings(Frozen):
    """One driver model and how it is asked."""

    model: str = Field(min_length=1)
    """The name that the server knows, a provider's prefix taken off."""
    provider: ProviderName = "openai"
    base_url: str | None = None
    """None: the provider's own address."""
    api_key: SecretStr | None = None
    """None: the server asks for none, as local ones do."""
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    """None: the server's default."""
    stream: bool = False
    max_answer_tokens: int = Field(default=8192, gt=0)
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest single exchange."""
    price: tuple[float, float] | None = None
    """Dollars a million tokens, asked and answered."""
    unused: tuple[str, ...] = ()
    """Variables that are set, accepted and without effect."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> LlmSettings:
        """UsageError names the variable that is missing or cannot be read."""
        stated = env.get("CHAT_MODEL", "").strip()
        if not stated:
            raise UsageError("CHAT_MODEL is not set: name the driver model, e.g. CHAT_MODEL=gpt-5.2")
        provider, model = _provider_of(stated, env)
        key = _first(env, _KEYS[provider])
        base = _first(env, _BASES[provider])
        if key is None and base is None:
            raise UsageError(
                f"{_KEYS[provider][0]} is not set, and CHAT_MODEL={stated} needs it; "
                f"for a local server set {_BASES[provider][0]} instead"
            )
        if not stated.isprintable():
            raise UsageError(f"CHAT_MODEL: {stated!r} is not the name of a model")
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise UsageError(f"{_KEYS[provider][0]}: a key consists of ASCII letters, digits and signs only")
        _require_address(_BASES[provider][0], base)
        return cls(
            model=model,
            provider=provider,
            base_url=base,
            api_key=SecretStr(key) if key else None,
            temperature=_number(env, "CHAT_TEMPERATURE", least=0.0, most=2.0),
            stream=_flag(env, "CHAT_STREAM"),
            max_answer_tokens=int(_number(env, "CHAT_MAX_TOKENS", least=1, most=1e6) or 8192),
            request_timeout_s=_number(env, "CHAT_TIMEOUT_S", least=1, most=86400) or 600.0,
            price=_price(env),
            unused=tuple(name for name in _UNUSED if env.get(name, "").strip()),
        )

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no transcript may show."""
        return (self.api_key.get_secret_value(),) if self.api_key else ()

    def shown(self, text: str, most: int) -> str:
        """The beginning of what a server said. Secrets go first: a cut one could not be found any more."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text[:most]


def _provider_of(stated: str, env: Mapping[str, str]) -> tuple[ProviderName, str]:
    """A prefix decides; else a local server that is set; else what the name sounds like."""
    for separator in ("/", ":"):
        prefix, found, rest = stated.partition(separator)
        if found and rest and prefix.lower() in _PREFIXES:
            return _PREFIXES[prefix.lower()], rest
    if _first(env, _BASES["openai"]) is None:
        for family, provider in _FAMILIES.items():
            if stated.lower().startswith(family):
                return provider, stated
    return "openai", stated


def _require_address(name: str, base: str | None) -> None:
    """The address itself is not repeated: it may hold a password."""
    if base is None:
        return
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not (usable and base.isprintable() and " " not in base):
        raise UsageError(f"{name}: not an http(s) address")


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := env.get(name, "").strip())), None)


def _number(env: Mapping[str, str], name: str, *, least: float, most: float) -> float | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise UsageError(f"{name}: {text!r} is not a number from {least:g} to {most:g}")
    return value


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text and text not in _TRUE | _FALSE:
        raise UsageError(f"{name}: {text!r} is neither true nor false")
    return text in _TRUE


def _price(env: Mapping[str, str]) -> tuple[float, float] | None:
    text = env.get("CHAT_PRICE", "").strip()
    if not text:
        return None
    try:
        asked, answered = (float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"CHAT_PRICE: {text!r} is not two numbers, dollars a million tokens asked and answered: 1.25,10"
        ) from error
    if not (0 <= asked < 1e6 and 0 <= answered < 1e6):
        raise UsageError(f"CHAT_PRICE: {text!r} is out of range")
    return asked, answered
