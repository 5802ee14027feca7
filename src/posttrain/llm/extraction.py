"""Reading an object of a given class out of what a model wrote.

Tolerated, because nothing can be misread by it: reasoning in <think> tags, prose around the object, code
fences, raw line ends inside strings, a comma before a closing bracket. A field marked `Block` may stand
in a fence of its own behind the object, where code needs no escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from posttrain.core.errors import PosttrainError

_T = TypeVar("_T", bound=BaseModel)

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(
    r"^[ \t]*(```+|~~~+)[ \t]*([\w+.-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
_MOST_OBJECTS = 40
"""Places at which an object is looked for; hostile texts consist of opening braces."""
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Marks a text field that may stand in a fenced block instead of the object."""

    language: str = "python"


class Unreadable(PosttrainError):
    """A text without the object; the message is meant for the model that wrote it."""


def read_answer(schema: type[_T], text: str) -> _T:
    """The first object in `text` that is a valid `schema`. Unreadable says what is wrong."""
    visible = _THINKING.sub("", text.replace("\r\n", "\n"))
    if not visible.strip():
        raise Unreadable("the answer is empty")
    blocks, rest = _take_blocks(schema, visible)
    complaint = None
    for candidate in _objects(rest):
        try:
            return schema.model_validate(_clean({**blocks, **candidate}))
        except ValidationError as error:
            complaint = complaint or _complaint(error)
    if blocks and complaint is None:
        try:
            return schema.model_validate(_clean(blocks))
        except ValidationError as error:
            complaint = _complaint(error)
    raise Unreadable(complaint or "there is no JSON object in the answer")


def describe(schema: type[BaseModel]) -> str:
    """How to answer, in words a small model can follow."""
    blocks = _block_fields(schema)
    lines = [
        f'  "{name}": {_kind(field)}{"" if field.is_required() else " (may be left out)"}'
        + (f" - {field.description}" if field.description else "")
        for name, field in schema.model_fields.items()
        if name not in blocks
    ]
    parts = []
    if lines:
        parts.append("Answer with one JSON object and nothing around it. Its fields:\n" + "\n".join(lines))
    for name, mark in blocks.items():
        about = schema.model_fields[name].description or name
        lead = "After the object write" if lines else "Answer with"
        parts.append(f"{lead} one block that starts with ```{mark.language} and ends with ```: {about}")
    return "\n".join(parts)


def _kind(field: FieldInfo) -> str:
    """The type of a field as JSON people say it."""
    annotation: Any = field.annotation
    schema = TypeAdapter(annotation).json_schema()
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value) for value in schema["enum"])
    options = schema.get("anyOf", [schema])
    names = [option.get("type", "value") for option in options if option.get("type") != "null"]
    return " or ".join(names)


def _block_fields(schema: type[BaseModel]) -> dict[str, Block]:
    return {
        name: mark
        for name, field in schema.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Block)
    }


def _take_blocks(schema: type[BaseModel], text: str) -> tuple[dict[str, str], str]:
    """The longest fence of each marked language, and the text without the fences of these languages."""
    blocks: dict[str, str] = {}
    for name, mark in _block_fields(schema).items():
        fences = [match for match in _FENCE.finditer(text) if _speaks(match, mark)]
        if fences:
            blocks[name] = max((match.group(3) for match in fences), key=len)
            for match in reversed(fences):
                text = text[: match.start()] + text[match.end() :]
    return blocks, text


def _speaks(fence: re.Match[str], mark: Block) -> bool:
    language = fence.group(2).lower()
    names = {mark.language, mark.language[:2], f"{mark.language}3"}
    return language in names or (not language and not fence.group(3).lstrip().startswith("{"))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects in a text, outermost ones, in order."""
    place, tries = text.find("{"), 0
    while place >= 0 and tries < _MOST_OBJECTS:
        tries += 1
        found, end = _decode(text, place)
        if isinstance(found, dict):
            yield found
        place = text.find("{", max(end, place + 1))


def _decode(text: str, place: int) -> tuple[Any, int]:
    """The value that starts at `place` and where it ends; (None, place) if there is none."""
    decoder = json.JSONDecoder(strict=False, parse_constant=_no_such_number)
    for attempt in (text[place:], _without_spare_commas(text[place:])):
        try:
            found, length = decoder.raw_decode(attempt)
        except (ValueError, RecursionError):
            continue
        # in the mended text positions differ; the object's own end in the original is not needed then
        return found, place + length if attempt == text[place:] else len(text)
    return None, place


def _without_spare_commas(text: str) -> str:
    """Commas before a closing bracket, outside of strings, have no meaning at all."""
    return _STRING_OR_COMMA.sub(lambda match: "" if match.group() == "," else match.group(), text)


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _clean(value: Any) -> Any:
    """Without NUL characters and lone surrogates, which no file of ours could hold."""
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _complaint(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{'.'.join(str(part) for part in fault['loc']) or 'object'}: {fault['msg']}" for fault in faults]
    return "; ".join(told[:5])
