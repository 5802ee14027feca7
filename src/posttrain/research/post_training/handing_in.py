"""From a checkpoint folder of this iteration to its grade; nothing is handed in twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.checkpoints.headers import INDEX_NAME, SINGLE_NAME, Incomplete, check_complete
from posttrain.core.errors import SubmissionFault
from posttrain.core.grading import Verdict
from posttrain.grading import client
from posttrain.research.nodes import Failure, Graded, Scored

_VERDICTS = frozenset(Verdict)
_POLL_S = 0.5
_ASK_S = 20.0


def find_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint in `folder`: itself, else the newest below it; never one elsewhere.

    A script may be ended while it saves, so what is half written is none.
    """
    if folder.is_symlink():
        return None
    if _weights(folder):
        return folder
    found = [path for path in _folders(folder) if _weights(path)]
    return max(found, key=lambda path: (_newest(path), str(path)), default=None)


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def _weights(folder: Path) -> bool:
    if folder.is_symlink():
        return False
    if not any((folder / name).is_file() for name in (SINGLE_NAME, INDEX_NAME)):
        return False
    try:
        check_complete(folder)
    except (Incomplete, OSError):
        return False
    except SubmissionFault:
        pass  # whatever else is wrong with it, the grader says so better
    return True


def _newest(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.glob("*.safetensors") if path.is_file()), default=0.0)


@dataclass(frozen=True)
class Desk:
    """The grading server, for one run."""

    url: str
    workspace: Path
    remaining: Callable[[], float]
    log: Callable[[str], None]

    def score(self, folder: Path, *, note: str) -> Scored:
        """Hand in the folder unless it already was, and wait for its verdict while there is time."""
        path = folder.relative_to(self.workspace).as_posix()
        number = self._accepted(path)
        if number is None:
            number = self._hand_in(path, note=note)
        elif isinstance(number, int):
            self.log(f"{path} is submission {number} already")
        if isinstance(number, Failure):
            return Scored(failure=number)
        entry = self._wait(number)
        if entry is None:
            text = f"submission {number} was accepted, its grade has not come in time"
            return Scored(failure=Failure(fault="ungraded", text=text))
        return _scored(entry)

    def _accepted(self, path: str) -> int | Failure | None:
        """The submission of this folder, if the server has one: each iteration has a folder of its own.

        A silent server is asked again, for nobody knows what it has; a failure if it stays so.
        """
        while (entries := self._entries()) is None:
            if self.remaining() < 2 * _POLL_S:
                return Failure(fault="ungraded", text="the grading server did not say what it has")
            time.sleep(_POLL_S)
        numbers = [
            entry["submission_id"]
            for entry in entries
            if entry.get("model_path") == path and entry.get("status") != Verdict.ERROR
        ]
        return max(numbers, default=None)

    def submissions(self) -> list[dict[str, Any]]:
        """What the server has; nothing if it is silent."""
        return self._entries() or []

    def _entries(self) -> list[dict[str, Any]] | None:
        """None if it is silent."""
        entries = client.call(self.url, "/submissions", timeout_s=_ASK_S).content.get("submissions")
        return [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else None

    def _hand_in(self, path: str, *, note: str) -> int | Failure:
        """Tried again while the server is full or fails, as long as there is time."""
        while True:
            left = self.remaining()
            reply = client.submit(
                self.url, path, wait=False, note=note[:1000], timeout_s=max(1.0, left + 5.0)
            )
            number = reply.content.get("submission_id")
            if isinstance(number, int) and reply.status in (200, 202):
                self.log(f"handed in {path} as submission {number}")
                return number
            text = f"{reply.content.get('error')} {reply.content.get('hint') or ''}".strip()
            if reply.status == 429 and "No more are accepted" in text:
                return Failure(fault="cap", text=text[:1000])
            passing = reply.status in (0, 429, 503, 507)
            if not passing or self.remaining() < 2 * _POLL_S:
                return Failure(fault="refused", text=f"HTTP {reply.status}: {text}"[:1000])
            known = self._accepted(path) if reply.status == 0 else None
            if known is not None:
                return known
            time.sleep(min(2.0, max(_POLL_S, self.remaining() / 4)))

    def _wait(self, number: int) -> Mapping[str, Any] | None:
        while True:
            reply = client.call(self.url, f"/submissions/{number}", timeout_s=_ASK_S)
            if reply.content.get("status") in _VERDICTS:
                return reply.content
            if self.remaining() <= 2 * _POLL_S:
                return None
            time.sleep(_POLL_S)


def _scored(entry: Mapping[str, Any]) -> Scored:
    """A verdict as a step's result."""
    if entry.get("status") != Verdict.GRADED or entry.get("score") is None:
        text = f"{entry.get('status')}: {entry.get('error')} {entry.get('hint') or ''}".strip()
        fault = "ungraded" if entry.get("status") == Verdict.ERROR else "refused"
        return Scored(failure=Failure(fault=fault, text=text[:1000]))
    improvement = entry.get("improvement_ci95")
    return Scored(
        grade=Graded(
            submission_id=entry["submission_id"],
            model_path=entry["model_path"],
            score=entry["score"],
            ci95=tuple(entry["ci95"]),
            baseline=entry["baseline_score"],
            improvement=entry["improvement"],
            improvement_ci95=None if improvement is None else tuple(improvement),
            n=entry["n"],
            flags=tuple(entry.get("flags") or ()),
            warnings=tuple(entry.get("warnings") or ()),
        )
    )
