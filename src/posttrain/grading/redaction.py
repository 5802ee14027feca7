"""The URL of a run's server is a bearer secret; no log shows it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

SHOWN = "…"


@dataclass(frozen=True)
class Redactor:
    """Replaces every occurrence of some secrets in a text."""

    secrets: tuple[str, ...]

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            if secret:
                text = text.replace(secret, SHOWN)
        return text


class RedactingFormatter(logging.Formatter):
    """Formats a record, traceback included, and takes the secrets out of the result."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__("%(asctime)s | %(levelname)s | %(name)s | %(message)s")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))
