"""One iteration of an agent's work, and its place in reports/summary.md and reports/summary.jsonl.

The Markdown tells the story; the JSON line repeats what can be counted. Both only ever grow.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.reports.summaries.words import ABSENT, LABELS, FailureType, Lang, TrainType
from posttrain.reports.summaries.words import Field as Bullet

MARKDOWN, ROWS = "summary.md", "summary.jsonl"
TIME_FORMAT = "%Y-%m-%d %H:%M"
_LARGEST = 16 << 20
_LOCK = ".summary.lock"
_TIME = r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}"


class Iteration(Frozen):
    """What one round of an agent did and what came of it."""

    number: int = Field(ge=1)
    time: str = Field(pattern=f"^{_TIME}$")
    """When the round ended, `YYYY-MM-DD HH:MM`, local."""
    duration_s: int = Field(ge=0)
    status: Literal["success", "failure"]
    exit_code: int
    """Of the round's training process."""
    score: float | None = Field(default=None, allow_inf_nan=False)
    """Points, as graded; None if nothing of this round was."""
    improvement: float | None = Field(default=None, allow_inf_nan=False)
    best: float | None = Field(default=None, allow_inf_nan=False)
    """The best score of the run so far, and the iteration that reached it."""
    best_iteration: int | None = Field(default=None, ge=1)
    train_type: TrainType
    config: dict[str, str] = Field(default_factory=dict)
    """Hyper-parameters as they stand in the training script, under their short names (lr, batch, …)."""
    what: str
    why: str
    """From the second round on it cites evidence of the last: scores.json, run.log, agent.log."""
    progress: str
    """Holds at least one process metric (`valid_submission_rate=…`) or the failure type."""
    failure_type: FailureType = FailureType.UNKNOWN
    key_code: str
    """Three to five lines of the training script."""
    context: str = ""
    """15 to 40 lines of it; empty with `same_as`."""
    context_where: str = ""
    """Where they stand: `train.py L34-L56, main()`."""
    same_as: int | None = Field(default=None, ge=1)
    """The earlier iteration whose code this is, unchanged."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.score is None) != (self.improvement is None):
            raise ValueError("score and improvement belong together: give both, or neither")
        if (self.best is None) != (self.best_iteration is None):
            raise ValueError("best and best_iteration belong together: give both, or neither")
        if self.same_as is not None and self.same_as >= self.number:
            raise ValueError(f"same_as: {self.same_as} is not an iteration before {self.number}")
        return self


def section(iteration: Iteration, *, lang: Lang = "zh") -> str:
    """The section of summary.md, line end included."""
    labels = LABELS[lang]
    head = f"## Iteration {iteration.number} ({iteration.time}, {labels.duration} {iteration.duration_s}s)"
    texts = {
        Bullet.STATUS: _status(iteration, lang),
        Bullet.SCORE: _scores(iteration),
        Bullet.TRAIN_TYPE: iteration.train_type.value,
        Bullet.CONFIG: _config(iteration),
        Bullet.WHAT: _line(iteration.what),
        Bullet.WHY: _line(iteration.why),
        Bullet.PROGRESS: _line(iteration.progress),
        Bullet.KEY_CODE: _fenced(iteration.key_code),
        Bullet.CONTEXT: _context(iteration, lang),
    }
    bullets = (_bullet(labels.fields[field], text) for field, text in texts.items())
    return "\n".join([head, "", *bullets, ""])


def _bullet(label: str, text: str) -> str:
    return f"- **{label}**:{text}" if text.startswith("\n") else f"- **{label}**: {text}"


def row(iteration: Iteration) -> dict[str, Any]:
    """The line of summary.jsonl as plain data: what can be counted, and nothing to read."""
    return {
        "iteration": iteration.number,
        "timestamp": iteration.time,
        "duration_s": iteration.duration_s,
        "status": iteration.status,
        "exit_code": iteration.exit_code,
        "score": _rounded(iteration.score),
        "improvement": _rounded(iteration.improvement),
        "train_type": iteration.train_type.value,
        "failure_type": iteration.failure_type.value,
    }


def append_iteration(folder: Path, iteration: Iteration, *, lang: Lang = "zh") -> None:
    """Append one iteration to summary.md and summary.jsonl in `folder`, creating both if need be.

    Earlier bytes stay as they are. A process that dies between the two files leaves a row short; the next
    append completes it first. UsageError if a file is none that can be appended to.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is not a folder of the workspace; move it away")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        markdown, rows = folder / MARKDOWN, folder / ROWS
        before = _tail(markdown) if _size(markdown) else b""
        _complete_rows(markdown, rows)
        _append(markdown, with_title(before, section(iteration, lang=lang), lang=lang))
        _append(rows, json_line(row(iteration)))


def with_title(before: bytes, text: str, *, lang: Lang) -> str:
    """A section as it follows on what is there: after a blank line, or after the title of a new file."""
    if not before.strip():
        return f"{LABELS[lang].title}\n\n{text}"
    tail = before[-4:].replace(b"\r\n", b"\n")
    return text if tail.endswith(b"\n\n") else f"\n{text}" if tail.endswith(b"\n") else f"\n\n{text}"


def json_line(data: dict[str, Any]) -> str:
    """A row as it stands in the file, line end included."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n"


# --- texts


def _status(iteration: Iteration, lang: Lang) -> str:
    good = iteration.status == "success"
    word = LABELS[lang].success if good else LABELS[lang].failure
    return f"{'✅' if good else '❌'} {word} (exit_code={iteration.exit_code})"


def _scores(iteration: Iteration) -> str:
    best = ABSENT
    if iteration.best is not None:
        best = f"{number_text(iteration.best)} (iter {iteration.best_iteration})"
    score, gain = number_text(iteration.score), number_text(iteration.improvement)
    return f"{score} | Improvement: {gain} | Best: {best}"


def number_text(value: float | None) -> str:
    """Points with one or two decimals, or the word for a score that does not exist."""
    rounded = _rounded(value)
    if rounded is None:
        return ABSENT
    return f"{rounded:.2f}".removesuffix("0")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2) + 0.0  # a minus sign before zero says nothing


def _config(iteration: Iteration) -> str:
    pairs = (f"{_line(name)}={_line(value)}" for name, value in iteration.config.items())
    return ", ".join(pairs) or TrainType.UNKNOWN.value


def _line(text: str) -> str:
    """Free text as one line, so that none of it can pass for a heading, a bullet or a fence."""
    return " ".join(text.split())


def _fenced(code: str, *, language: str = "python") -> str:
    lines = code.strip("\n").split("\n")
    if not "".join(lines).strip():
        return ABSENT
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join(["", *(f"  {line}".rstrip() for line in (f"{fence}{language}", *lines, fence))])


def _context(iteration: Iteration, lang: Lang) -> str:
    where = _line(iteration.context_where)
    if iteration.same_as is not None:
        same = LABELS[lang].same_as.format(iteration.same_as)
        return f"{where}, {same}" if where else same
    code = _fenced(iteration.context)
    return where + code if code != ABSENT else where or ABSENT


# --- files


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One writer at a time: two appended sections must not get mixed up."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0
    if not path.is_file() or path.is_symlink():
        raise UsageError(f"{path} is not a regular file; move it away")
    if status.st_size > _LARGEST:
        raise UsageError(f"{path} is larger than {_LARGEST >> 20} MiB; nobody reads it any more")
    return status.st_size


def _complete_rows(markdown: Path, rows: Path) -> None:
    """What a writer that died between the two files left undone: the row of the last section."""
    from posttrain.reports.summaries.recovery import missing_text  # it reads what this module writes

    text = missing_text(
        markdown.read_bytes() if _size(markdown) else b"", rows.read_bytes() if _size(rows) else b""
    )
    if text:
        _append(rows, text)


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        return file.read()


def _append(path: Path, text: str) -> None:
    """All of `text` in one write, or nothing of it."""
    data = text.encode("utf-8", "replace")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        before = os.fstat(descriptor).st_size
        if os.write(descriptor, data) != len(data):
            os.ftruncate(descriptor, before)
            raise UsageError(f"{path}: the disk is full; nothing was appended")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
