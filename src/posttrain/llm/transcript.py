"""What was said to a driver model and by it, one JSON object a line, secrets taken out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from posttrain.llm.messages import Usage

HIDDEN = "…"


class Transcript:
    """Appends to a file; None keeps nothing."""

    def __init__(self, path: Path | None, *, secrets: Iterable[str] = ()) -> None:
        self._path = path
        self._secrets = tuple(secret for secret in secrets if len(secret) >= 4)

    def redacted(self, text: str) -> str:
        """`text` without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def spent(self) -> Usage:
        """The sum over all exchanges that it holds, also those of processes that were killed."""
        usage = Usage()
        with suppress(OSError):
            for line in self._path.read_bytes().splitlines() if self._path else ():
                with suppress(ValueError, KeyError, TypeError, RecursionError):
                    usage += Usage.model_validate(json.loads(line)["usage"])
        return usage

    def add(self, **entry: Any) -> None:
        """One exchange or one failed try."""
        if self._path is None:
            return
        line = json.dumps({"time": _now(), **self._hide(entry)}, ensure_ascii=False) + "\n"
        # an answer is worth more than its record: a full disk, or a folder in its place, costs the line alone
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(line.encode("utf-8", "replace"))

    def _hide(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redacted(value)
        if isinstance(value, (list, tuple)):
            return [self._hide(item) for item in value]
        if isinstance(value, dict):
            return {key: self._hide(item) for key, item in value.items()}
        return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
