"""The grading server as training scripts use it: hand in without waiting, look at the grade later."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from posttrain.core.errors import InfrastructureError
from posttrain.core.grading import Verdict
from posttrain.grading import client

_VERDICTS = frozenset(Verdict)
_TRIES = 5
_PAUSE_S = 2.0


class GradingServer:
    """One run's server, by its secret URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def remaining_s(self) -> float:
        """Seconds until the deadline; InfrastructureError if the server does not say."""
        reply = client.call(self._url, "/time", timeout_s=30)
        remaining = reply.content.get("remaining")
        if not isinstance(remaining, int | float):
            raise InfrastructureError(f"the grading server tells no time: {reply.content.get('error')}")
        return float(remaining)

    def total_s(self) -> float:
        """The whole budget of the run, what was used before an interruption included."""
        reply = client.call(self._url, "/time", timeout_s=30)
        total = reply.content.get("timeout_s")
        return float(total) if isinstance(total, int | float) else self.remaining_s()

    def hand_in(self, folder: Path, *, note: str) -> int | None:
        """The submission's number once its copy is complete; None if it was refused."""
        for attempt in range(1, _TRIES + 1):
            reply = client.submit(self._url, str(folder), wait=False, note=note)
            if reply.status != 429 or attempt == _TRIES:
                break
            time.sleep(_PAUSE_S)  # four were waiting; one of them is graded soon
        number = reply.content.get("submission_id")
        return number if isinstance(number, int) and reply.status in (200, 202) else None

    def grade(self, submission_id: int) -> dict[str, Any] | None:
        """The grade, None while it is being made or if the server is silent."""
        reply = client.call(self._url, f"/submissions/{submission_id}", timeout_s=30)
        return reply.content if reply.content.get("status") in _VERDICTS else None

    def wait_for(self, submission_id: int, *, until_s: float) -> dict[str, Any] | None:
        """The grade, or None if it has not come when `until_s` seconds of budget are left."""
        while (grade := self.grade(submission_id)) is None and self.remaining_s() > until_s:
            time.sleep(0.5)
        return grade
