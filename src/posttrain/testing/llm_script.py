"""The script of a scripted LLM: what is answered to which request, as data that a file can hold.

A script is a list of steps, or an object with `steps` and settings of the server. Of a request, the first
step that fits and is not used up answers. A step without `when` is used once; one with `when` as often as
it fits, so that a client that was killed and asks again gets the same answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from posttrain.core.errors import UsageError
from posttrain.core.faults import fault_text
from posttrain.core.frozen import Frozen


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_many), Field(min_length=1)
]
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ANSWERS = ("text", "json", "tool_calls", "status", "raw", "hang_up")


class ToolCall(Frozen):
    """A tool that the model wants called."""

    name: str = Field(min_length=1)
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    """A text is sent as it stands, also where it is no JSON."""
    id: str | None = None

    @property
    def arguments_text(self) -> str:
        """As they go over the wire."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


class Usage(Frozen):
    """Tokens that the answer claims to have used."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class Step(Frozen):
    """One answer, and when it is given."""

    when: Texts | None = None
    """Texts that the request (all its messages) must hold, all of them."""
    when_last: Texts | None = None
    """The same for the last message that is not the model's own."""
    times: Annotated[int, Field(ge=1)] | Literal["always"] | None = None
    """How often it answers; by default once without a condition, always with one."""

    text: str | None = None
    """The model's words."""
    json_: Any = Field(default=None, alias="json")
    """Words that are this value as JSON; the arguments of a tool where the request insists on one."""
    tool_calls: Annotated[tuple[ToolCall, ...], Field(min_length=1)] | None = None
    """With or without `text`."""
    status: Annotated[int, Field(ge=400, le=599)] | None = None
    """An HTTP error instead of an answer."""
    raw: str | None = None
    """The body as it stands, with status 200: for bodies that are no JSON or of another shape."""
    hang_up: bool = False
    """Close the connection without a word."""

    message: str = "scripted error"
    """Of an HTTP error."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Further HTTP headers, as Retry-After."""
    repeat: int = Field(default=1, ge=1, le=10_000_000)
    """The text that many times over: an over-long answer."""
    finish_reason: str | None = None
    """By default `stop`, or `tool_calls`."""
    usage: Usage | None = None
    """By default a token for every four characters."""
    delay_s: float = Field(default=0.0, ge=0.0, le=86_400.0)
    """Before the first byte."""
    chunk_chars: int = Field(default=20, ge=1)
    """Length of a piece where the answer is streamed."""
    chunk_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    """Pause between two pieces."""
    cut_after: int | None = Field(default=None, ge=0)
    """Close the connection after that many bytes of the body."""

    @model_validator(mode="after")
    def _answers_one_way(self) -> Step:
        given = [name for name in _ANSWERS if self._has(name)]
        if given not in ([name] for name in _ANSWERS) and given != ["text", "tool_calls"]:
            told = " and ".join(given) or "none of them"
            raise ValueError(f"give one of {', '.join(_ANSWERS)}; there is {told}")
        return self

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not (_HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
                raise ValueError(f"{name!r} is no header that HTTP could carry")
        return headers

    def _has(self, name: str) -> bool:
        if name == "json":
            return "json_" in self.model_fields_set
        if name == "hang_up":
            return self.hang_up
        return getattr(self, name) is not None

    @property
    def uses(self) -> int | None:
        """How often it may answer; None for always."""
        if self.times == "always":
            return None
        conditional = self.when is not None or self.when_last is not None
        return self.times if self.times is not None else (None if conditional else 1)

    def fits(self, *, whole: str, last: str) -> bool:
        """Whether it answers a request with these texts."""
        return all(text in whole for text in self.when or ()) and all(
            text in last for text in self.when_last or ()
        )


class Script(Frozen):
    """Everything that a scripted LLM knows."""

    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    models: tuple[str, ...] = ("scripted",)
    """What /v1/models lists."""
    api_key: str | None = None
    """If given, requests without it are answered 401."""


Playable: TypeAlias = "Script | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]"


def read_script(source: Playable) -> Script:
    """A script from a file, or from what a file may hold. UsageError in a line that names step and field."""
    if isinstance(source, Script):
        return source
    name = str(source) if isinstance(source, Path) else "script"
    content = _load(source) if isinstance(source, Path) else source
    if isinstance(content, Mapping):
        data: dict[Any, Any] = dict(content)
    elif isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        data = {"steps": list(content)}
    else:
        raise UsageError(f"{name}: neither a list of steps nor an object with `steps`")
    try:
        return Script.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"{name}: {_first_fault(error)}") from error


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: line {error.lineno} is no JSON: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply") from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = [str(part) for part in fault["loc"]]
    if place[:1] == ["steps"] and len(place) > 1 and place[1].isdigit():
        step, field = f"step {int(place[1]) + 1}: ", ".".join(place[2:])
    else:
        step, field = "", ".".join(place)
    return f"{step}{field + ': ' if field else ''}{fault_text(fault)}"
