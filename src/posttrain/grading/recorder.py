"""What a grader leaves behind: rows of the ledger, and grade.json beside the logs of each grading."""

from __future__ import annotations

import logging
import threading
from typing import Any

from pydantic import BaseModel

from posttrain.core.errors import StorageFull
from posttrain.core.grading import Grade
from posttrain.core.paths import GradingFolder, RunPaths
from posttrain.grading.ledger import Ledger, RowKind
from posttrain.infra.files import write_json

logger = logging.getLogger(__name__)

_DISK_PATIENCE_S = 1.0


class Recorder:
    """Writes for one grader. Methods may be called from any thread."""

    def __init__(self, ledger: Ledger, paths: RunPaths, *, stopping: threading.Event) -> None:
        """`stopping` ends the waiting for a full disk."""
        self._ledger = ledger
        self._paths = paths
        self._stopping = stopping

    def row_now(self, kind: RowKind, data: BaseModel | dict[str, Any]) -> None:
        """Append a row or raise StorageFull."""
        self._ledger.append(kind, data)

    def row(self, kind: RowKind, data: BaseModel | dict[str, Any]) -> None:
        """Append a row, waiting for a disk that is full: what is known must not get lost.

        Raises StorageFull when the grader is stopped meanwhile.
        """
        while True:
            try:
                self._ledger.append(kind, data)
            except StorageFull as error:
                logger.warning("%s", error)
                if self._stopping.wait(_DISK_PATIENCE_S):
                    raise
            else:
                return

    def grade(self, grade: Grade) -> None:
        """A verdict: grade.json for people, the ledger's row for the record."""
        folder = self._paths.grading_of(grade.submission_id)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(GradingFolder(folder).grade, grade, durable=False)
        except OSError as error:
            logger.warning("grade.json of submission %d: %s", grade.submission_id, error.strerror)
        self.row("graded", grade)
