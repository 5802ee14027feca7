"""What pydantic found wrong with a file or a request, in words for the one who wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

_UNKNOWN = "extra_forbidden"


def fault_text(fault: Mapping[str, Any]) -> str:
    """What is wrong with one field, in one line and without its name."""
    if fault["type"] == _UNKNOWN:
        return "there is no such field"
    return " ".join(str(fault["msg"]).removeprefix("Value error, ").split())


def first_fault(error: ValidationError, *, whole: str) -> str:
    """One fault as `field.sub: what is wrong`; a field that does not exist goes before one that is missing.

    A misspelt field gives both, and only its own name leads to it. `whole` stands for the field of a fault
    that lies in none.
    """
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    fault = next((each for each in faults if each["type"] == _UNKNOWN), faults[0])
    return f"{'.'.join(str(part) for part in fault['loc']) or whole}: {fault_text(fault)}"
