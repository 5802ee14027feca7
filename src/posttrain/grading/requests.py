"""What a client asked for: parsed strictly, and refused by naming the field."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from pydantic import ValidationError

from posttrain.core.errors import PosttrainError
from posttrain.core.grading import SubmitRequest


class Refused(PosttrainError):
    """A request that gets no submission number; `status` is the HTTP status of the answer."""

    status = 400

    def __init__(
        self, reason: str, *, hint: str = "", field: str | None = None, retry_after_s: int | None = None
    ):
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.field = field
        self.retry_after_s = retry_after_s


class BadRequest(Refused):
    """The request itself is wrong."""

    status = 400


class Closed(Refused):
    """Nothing is accepted any more."""

    status = 410


class TooMany(Refused):
    """Over the cap, or too many waiting."""

    status = 429


def parse_submit(body: bytes) -> SubmitRequest:
    """The request in a body, whatever its content type says. BadRequest names what is wrong with it."""
    content = _parse_json(body)
    if not isinstance(content, dict):
        raise BadRequest("the body is not a JSON object", hint='Send {"model_path": "output/v1"}.')
    if "model_path" not in content:
        raise BadRequest("Missing model_path", field="model_path", hint='Send {"model_path": "output/v1"}.')
    if type(content.get("gpu")) is int:  # ids are strings, but 0 is how people write the first one
        content["gpu"] = str(content["gpu"])
    for field, value in content.items():
        _refuse_unprintable(field, value)
    try:
        return SubmitRequest.model_validate(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"{field}: {first['msg']}", field=field) from error


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_such_number)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and huge integers are ValueErrors
        detail = type(error).__name__ if isinstance(error, RecursionError) else str(error)
        raise BadRequest(
            f"the body is not JSON: {detail}", hint='Send {"model_path": "output/v1"}.'
        ) from error


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_unprintable(field: str, value: Any) -> None:
    """NUL ends a path for the kernel, and a lone surrogate cannot be written as UTF-8."""
    for text in (field, value):
        if isinstance(text, str) and ("\0" in text or not _is_utf8(text)):
            shown = field.encode("ascii", "backslashreplace").decode("ascii").replace("\0", "\\0")
            raise BadRequest(f"{shown}: holds a NUL or a lone surrogate", field=shown)


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def locate(model_path: str, *, workspace: Path) -> str:
    """The path relative to the workspace, by its text alone, below `output/` or `output` itself.

    Whether its components are links is checked when they are opened. BadRequest for anything outside and
    for what is not there.
    """
    text = PurePosixPath(os.path.normpath(model_path))
    if text.is_absolute():
        text = _inside(text, workspace=workspace)
    if text.parts[:1] != ("output",):
        raise BadRequest(
            f"model_path: {model_path!r} is not below output/",
            field="model_path",
            hint="Save to $OUTPUT_DIR/<version> and submit that folder.",
        )
    if not os.path.lexists(workspace / text):
        raise BadRequest(
            f"model_path: {model_path!r} does not exist",
            field="model_path",
            hint="Paths are relative to the workspace, or absolute inside it.",
        )
    return text.as_posix()


def _inside(path: PurePosixPath, *, workspace: Path) -> PurePosixPath:
    for root in (workspace, workspace.resolve()):
        if path.is_relative_to(root):
            return path.relative_to(root)
    raise BadRequest(
        f"model_path: {str(path)!r} is outside the workspace",
        field="model_path",
        hint="Save to $OUTPUT_DIR/<version> and submit that folder.",
    )


def choose_gpu(gpu: str | None, *, available: Sequence[str]) -> str | None:
    """The GPU to grade on; None where the lab has none, whatever was asked for."""
    if not available:
        return None
    if gpu is None:
        return available[0]
    if gpu not in available:
        raise BadRequest(f"gpu: no {gpu!r} here", field="gpu", hint=f"Available: {', '.join(available)}.")
    return gpu
