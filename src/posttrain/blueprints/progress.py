"""How far a run is, where its log says so."""

from __future__ import annotations

import re

from posttrain.blueprints.logs import LogLine
from posttrain.core.frozen import Frozen

_BAR = re.compile(r"(?P<name>[^|\d%]*)\d{1,3}%\|.*?\|\s*(?P<step>\d+)/(?P<total>\d+)\s*\[")
_OF = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter|iteration|update|batch)s?\b['\"]?\s*[:=#]?\s*\[?"
    r"(?P<step>\d+)\s*(?:/|of)\s*(?P<total>\d+)",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"\b(?:global_steps?|training/global_step|step)['\"]?\s*[:=]\s*(?P<step>\d+)\b", re.IGNORECASE
)
_TOTAL = re.compile(
    r"(?:total optimization steps|total_training_steps|max_steps)['\"]?\s*[:=]\s*(?P<total>\d+)",
    re.IGNORECASE,
)
_SIDE = re.compile(
    r"load|download|map|filter|fetch|tokeni|generat|writ|sav|process|prepar|convert|render|extract|pack|eval|valid|test",
    re.IGNORECASE,
)


class Progress(Frozen):
    """Steps done, and the time that the rest will take at the pace so far."""

    step: int
    total: int | None
    eta_s: float | None

    @property
    def text(self) -> str:
        return f"{self.step}/{self.total}" if self.total else str(self.step)


class ProgressReader:
    """Remembers the first and the latest step; bars of loading and evaluating do not count."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._first: tuple[int, float] | None = None
        self._latest: tuple[int, float | None] | None = None

    def __call__(self, line: LogLine) -> None:
        total = _TOTAL.search(line.text)
        if total:
            self._total = int(total["total"])
            return
        bar = _BAR.search(line.text)
        if bar and _SIDE.search(bar["name"]):
            return
        of = bar or _OF.search(line.text)
        if of and int(of["total"]) > 0:
            self._total = int(of["total"])
        found = of or _STEP.search(line.text)
        if found:
            self._note(int(found["step"]), line.at)

    def _note(self, step: int, at: float | None) -> None:
        if self._latest is None or step < self._latest[0]:  # a new start
            self._first = (step, at) if at is not None else None
        self._latest = (step, at)

    @property
    def progress(self) -> Progress | None:
        if self._latest is None:
            return None
        step, at = self._latest
        return Progress(step=step, total=self._total, eta_s=self._eta(step, at))

    def _eta(self, step: int, at: float | None) -> float | None:
        if self._first is None or at is None or self._total is None or step <= self._first[0]:
            return None
        pace_s = (at - self._first[1]) / (step - self._first[0])
        return max(0.0, (self._total - step) * pace_s)
