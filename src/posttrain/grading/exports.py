"""scores.json and run_meta.json in the workspace: what the harness knows, written for the agent to read.

They are exports. Whatever an agent writes into them is overwritten by the next event and read by nobody.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from posttrain.core.frozen import Frozen
from posttrain.core.grading import Grade
from posttrain.core.paths import Workspace
from posttrain.infra.files import write_json

logger = logging.getLogger(__name__)


class Budget(Protocol):
    """The agent's time, on a clock that nobody can set."""

    @property
    def start_time(self) -> float:
        """Unix seconds; start_time + timeout_s is the deadline."""
        ...

    @property
    def timeout_s(self) -> float: ...

    def remaining(self) -> float:
        """Seconds left, never below 0."""
        ...


class RunMeta(Frozen):
    """run_meta.json, whole Unix seconds as the ancestor has them."""

    start_time: int | None
    timeout_s: int
    last_submit_time: int | None = None
    end_time: int | None = None


class Exports:
    """Keeps both files equal to the harness's state. Methods may be called from any thread.

    A file that cannot be written (the agent put a folder in its place, the disk is full) costs a warning
    and the freshness of that file, nothing else.
    """

    def __init__(self, workspace: Workspace, *, timeout_s: float) -> None:
        self._workspace = workspace
        self._lock = threading.Lock()  # an older state must not overwrite a newer one
        self._meta = RunMeta(start_time=None, timeout_s=round(timeout_s))

    @property
    def meta(self) -> RunMeta:
        return self._meta

    def began(self, start_time: float, *, last_submit: float | None = None) -> None:
        """The clock of the agent runs; a resumed run may know of submissions before."""
        last = None if last_submit is None else int(last_submit)
        self._update(start_time=int(start_time), last_submit_time=last, end_time=None)

    def submitted(self, time: float) -> None:
        self._update(last_submit_time=int(time))

    def ended(self, time: float) -> None:
        """The agent's time is over."""
        self._update(end_time=int(time))

    def scores(self, grades: Sequence[Grade]) -> None:
        """All verdicts so far, by number."""
        with self._lock:
            _replace(self._workspace.scores, [score_entry(grade) for grade in grades])

    def settle(self, grades: Sequence[Grade]) -> None:
        """Both files once more, when nobody but the harness can write any longer."""
        self._update()
        self.scores(grades)

    def _update(self, **changes: int | None) -> None:
        with self._lock:
            self._meta = self._meta.model_copy(update=changes)
            _replace(self._workspace.run_meta, self._meta)


def score_entry(grade: Grade) -> dict[str, Any]:
    """A row of scores.json. Ungraded means no `score` key, so that `.get("score", 0.0)` stays right."""
    entry: dict[str, Any] = {
        "submission_id": grade.submission_id,
        "timestamp": grade.timestamp,
        "model_path": grade.model_path,
        "status": grade.status.value,
        "baseline_score": grade.baseline_score,
        "elapsed_seconds": round(grade.elapsed_seconds, 2),
    }
    if grade.score is not None and grade.improvement is not None:
        entry |= {"score": grade.score.value, "improvement": round(grade.improvement.value, 6)}
    if grade.error is not None:
        entry["error"] = grade.error
    return entry


def _replace(path: Path, value: Any) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            os.rename(path, path.with_name(f"{path.name}.{secrets.token_hex(4)}"))  # noqa: PTH104
        write_json(path, value, durable=False)
    except OSError as error:
        logger.warning("%s could not be written: %s", path.name, error.strerror)
