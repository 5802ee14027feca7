"""Variables from a `.env` file, read before settings are."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from posttrain.core.errors import UsageError


def load_dotenv_file(path: Path, environ: MutableMapping[str, str]) -> None:
    """Add the variables of a `.env` file to `environ`, never overriding what is set there.

    Values may be bare, in single or in double quotes; they are taken literally, except for the escapes
    of double quotes. A missing file is fine; a line that is no `NAME=value` is a UsageError naming it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            bindings = list(parse_stream(file))
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    for binding in bindings:
        name, value = _named(binding, path)
        if name is not None and value is not None and name not in environ:
            environ[name] = value


def _named(binding: Binding, path: Path) -> tuple[str | None, str | None]:
    """Name and value of a line, both None for a blank or a comment."""
    bare_name = binding.key is not None and binding.value is None
    if binding.error or bare_name or not (binding.key or "A").replace("_", "A").isalnum():
        number = binding.original.line + _blank_lines(binding.original.string)
        raise UsageError(f"{path}, line {number}: not of the form NAME=value (is a quote unclosed?)")
    if "\0" in (binding.value or ""):
        raise UsageError(f"{path}: the value of {binding.key} holds a NUL character")
    return binding.key, binding.value


def _blank_lines(text: str) -> int:
    """How many line ends stand before the first visible character."""
    return text[: len(text) - len(text.lstrip())].count("\n")
