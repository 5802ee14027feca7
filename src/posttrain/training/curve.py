"""The training curve: every step as a JSON line, every few seconds a line for people."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from posttrain.training.sft import StepReport


class Curve:
    """Appends to a file; `log` gets a summary now and then."""

    def __init__(self, path: Path, *, log: Callable[[str], None], every_s: float = 10.0) -> None:
        self._path = path
        self._log = log
        self._every_s = every_s
        self._began = self._told = time.monotonic()
        self._tokens = 0
        self._smooth: float | None = None

    def add(self, report: StepReport) -> None:
        """Keep a step; non-finite numbers become null, which JSON has."""
        now = time.monotonic()
        line = asdict(report) | {"seconds": round(now - self._began, 2)}
        finite = {name: value if math.isfinite(value) else None for name, value in line.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")
        self._tokens += report.tokens
        if finite["loss"] is not None:
            self._smooth = report.loss if self._smooth is None else 0.9 * self._smooth + 0.1 * report.loss
        if now - self._told >= self._every_s or report.step == 1:
            self._tell(report, now)

    def _tell(self, report: StepReport, now: float) -> None:
        rate = self._tokens / max(now - self._told, 1e-9)
        self._told, self._tokens = now, 0
        smooth = float("nan") if self._smooth is None else self._smooth
        skipped = f", {report.skipped} skipped" if report.skipped else ""
        self._log(
            f"step {report.step}: loss {smooth:.3f}, gradient {report.gradient_norm:.2f}, "
            f"learning rate {report.learning_rate:.2e}, {rate:.0f} tokens/s{skipped}"
        )
