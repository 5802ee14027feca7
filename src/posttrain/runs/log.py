"""run.log: one line an event, for the operator in full and for the agent without what it must not know."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TextIO

Redact = Callable[[str], str]


class RunLog:
    """Appends `time | level | message` lines.

    What is said with `public=True` also goes to the agent's view of the log; a test number, a secret or a
    path outside the workspace never does. Every line passes `redact` first. While open, warnings of the
    package's own loggers are appended too (operator's log only).
    """

    def __init__(self, path: Path, *, redact: Redact = str) -> None:
        self._path = path
        self._redact = redact
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._public: TextIO | None = None
        self._handler = _Forward(self)

    def __enter__(self) -> RunLog:
        self._file = self._path.open("a", encoding="utf-8", errors="backslashreplace")
        logging.getLogger("posttrain").addHandler(self._handler)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        logging.getLogger("posttrain").removeHandler(self._handler)
        for file in (self._file, self._public):
            if file is not None:
                file.close()
        self._file = self._public = None

    def open_public(self, path: Path) -> None:
        """From here on, public lines also go to this file."""
        self._public = path.open("a", encoding="utf-8", errors="backslashreplace")

    def set_redaction(self, redact: Redact) -> None:
        self._redact = redact

    def redacted(self, text: str) -> str:
        """The text as a log may show it."""
        return self._redact(text)

    def event(
        self, text: str, *, public: bool = False, level: str = "INFO", at: datetime | None = None
    ) -> None:
        """One line; line breaks in `text` are shown as such, so that nobody can forge a second line."""
        line = log_line(self._redact(text), level=level, at=at or datetime.now(UTC))
        with self._lock:
            for file in (self._file, self._public if public else None):
                if file is not None:
                    _append(file, line)


def log_line(text: str, *, at: datetime, level: str = "INFO") -> str:
    """One event as it stands in the file."""
    message = text.replace("\r", "\\r").replace("\n", "\\n")
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} | {level:<7} | {message}\n"


def _append(file: TextIO, line: str) -> None:
    """A log that can't be written (full disk) must not end the run it tells of."""
    try:
        file.write(line)
        file.flush()
    except OSError:
        return


class _Forward(logging.Handler):
    """Sends warnings of our own loggers to a run's log."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.event(f"{record.name}: {record.getMessage()}", level=record.levelname)
