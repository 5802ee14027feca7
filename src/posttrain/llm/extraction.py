"""Reading an object of a given class out of what a model wrote.

Tolerated, because nothing can be misread by it: reasoning in <think> tags before the answer, prose around
the object, code fences, also two around each other, raw line ends inside strings, a comma before a closing
bracket. A field marked `Block` may stand in a fence of its own beside the object, where code needs no escape.

Every look at the text takes time in proportion to its length: what a model repeats without end must not
hold up the loop beyond its deadline.
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

_THINKING = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_ANSWER = re.compile(r"[{]|`{3}|~{3}")
"""Where an answer may begin."""
_LINE = re.compile(r"(?:[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([\w+.-]*+)([^\n]*+)|[^\n]*+)(?:\n|\Z)")
"""A line; with groups where it marks a fence."""
_MOST_OBJECTS = 40
"""Places at which an object is looked for; hostile texts consist of opening braces."""
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|,(?=\s*+[}\]])', re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Marks a text field that may stand in a fenced block instead of the object."""

    language: str = "python"


@dataclass(frozen=True)
class _Fence:
    """A fenced passage and where it stands, its marks included."""

    start: int
    end: int
    language: str
    content: str


class Unreadable(PosttrainError):
    """A text without the object; the message is meant for the model that wrote it."""


def read_answer(schema: type[_T], text: str) -> _T:
    """The first object in `text` that is a valid `schema`. Unreadable says what is wrong."""
    fault = None
    for reading in _readings(text.replace("\r\n", "\n").replace("\r", "\n")):
        try:
            return _first_valid(schema, reading)
        except Unreadable as error:
            fault = fault or error
        except RecursionError:
            fault = fault or Unreadable("the object is nested too deeply")
    raise fault or Unreadable("the answer is empty")


def _first_valid(schema: type[_T], visible: str) -> _T:
    if not visible.strip():
        raise Unreadable("the answer is empty")
    blocks, rest = _take_blocks(schema, visible)
    complaint = None
    for candidate in _objects(rest):
        try:
            return schema.model_validate(_clean(candidate | _longest(blocks, candidate)))
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


def _readings(text: str) -> list[str]:
    """What a text may say, the likeliest first.

    Behind the reasoning that it begins with; a tag inside of the answer is one of its words. Where a tag
    only ends what nothing began, the server may have kept the beginning to itself: the text as a whole is
    the second reading.
    """
    begin, second, thinking = 0, None, False
    for tag in _THINKING.finditer(text):
        if tag.group(1):
            if not thinking:
                if second is not None or _in_fence(text, tag.start()):
                    break
                second = begin
            begin, thinking = tag.end(), False
        elif not thinking:
            if _ANSWER.search(text, begin, tag.start()):
                break
            thinking = True
    return [text[begin:], *([] if second is None else [text[second:]])]


def _in_fence(text: str, place: int) -> bool:
    return any(fence.start < place < fence.end for fence in _fences(text))


def _longest(blocks: dict[str, str], candidate: dict[str, Any]) -> dict[str, str]:
    """Blocks but for those that the object itself says at greater length; a short word only points at one."""
    own = {name: value for name, value in candidate.items() if name in blocks and isinstance(value, str)}
    return {name: max(block, own.get(name, ""), key=len) for name, block in blocks.items()}


def _take_blocks(schema: type[BaseModel], text: str) -> tuple[dict[str, str], str]:
    """The longest fence of each marked language, and the text without the fences of these languages."""
    blocks: dict[str, str] = {}
    for name, mark in _block_fields(schema).items():
        fences = [fence for fence in _fences(text) if _speaks(fence, mark)]
        if fences:
            blocks[name] = max((fence.content for fence in fences), key=len)
            begins, ends = [0, *(fence.end for fence in fences)], [*(fence.start for fence in fences), None]
            text = "".join(text[begin:end] for begin, end in zip(begins, ends, strict=True))
    return blocks, text


def _fences(text: str) -> Iterator[_Fence]:
    """Fenced passages in order; the last may lack its end. Of two around each other, the inner one."""
    opened: re.Match[str] | None = None
    start = begin = 0
    blank = True
    for mark in _LINE.finditer(text):
        if not mark.group(1):
            blank = blank and not mark.group().strip()
            continue
        bare = not (mark.group(2) or mark.group(3).strip())
        if opened is None or (blank and not bare):
            start = mark.start() if opened is None else start
            opened, begin, blank = mark, mark.end(), True
        elif bare and mark.group(1) == opened.group(1):
            yield _Fence(start, mark.end(), opened.group(2).lower(), text[begin : mark.start()])
            opened = None
        else:
            blank = False
    if opened is not None:
        yield _Fence(start, len(text), opened.group(2).lower(), text[begin:])


def _speaks(fence: _Fence, mark: Block) -> bool:
    names = {mark.language, mark.language[:2], f"{mark.language}3"}
    return fence.language in names or (not fence.language and not fence.content.lstrip().startswith("{"))


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
