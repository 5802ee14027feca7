"""The base of every value object, and the one canonical JSON form that digests are taken over."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value; unknown fields are an error, so a typo in a file is named instead of ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


def canonical_json(value: Any) -> bytes:
    """The UTF-8 bytes of `value` with sorted keys and no spare white space: equal values give equal bytes."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")
