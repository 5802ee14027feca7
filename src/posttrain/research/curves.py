"""Training curves: read from the file that a script writes, or from what it prints, and judged."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from posttrain.research.nodes import Curve

_PRINTED = re.compile(
    r"""['"]?\b(?:train_)?loss['"]?\s{0,4}[:=]?\s{0,4}(nan|[+-]?inf|[+-]?\d+(?:\.\d*)?(?:e[+-]?\d+)?)\b""",
    re.I,
)
_SAMPLES = 20
_MOST_BYTES = 8 << 20
_DEAD = 8
"""Losses in a row that are no numbers."""
_WINDOW = 5
_EXPLODED = 3.0


def read_losses(curve: Path, log: Path) -> list[float]:
    """Losses in order, NaN where there was none: the curve file's, else those in the log."""
    losses = [_loss(line) for line in _lines(curve)]
    known = [loss for loss in losses if loss is not None]
    if known:
        return known
    return [float(found[-1]) for line in _lines(log) if (found := _PRINTED.findall(line))]


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []  # a script may leave a pipe there, which nobody would ever write into
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _loss(line: str) -> float | None:
    """None for a line that is no point of a curve."""
    try:
        point = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(point, dict) or "loss" not in point:
        return None
    loss = point["loss"]
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        return math.nan
    try:
        return float(loss)
    except OverflowError:
        return math.inf


def in_short(losses: Sequence[float]) -> Curve:
    """The curve as the journal keeps it."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    every = max(1, math.ceil(len(losses) / _SAMPLES))
    return Curve(
        points=len(losses),
        first=_rounded(losses[0]) if losses else None,
        last=_rounded(losses[-1]) if losses else None,
        lowest=_rounded(min(finite)) if finite else None,
        not_finite=len(losses) - len(finite),
        sampled=tuple(_rounded(loss) for loss in losses[::every]),
    )


def _rounded(loss: float) -> float | None:
    return round(loss, 5) if math.isfinite(loss) else None


def why_diverged(losses: Sequence[float]) -> str | None:
    """What shows that this training is lost, or None."""
    if len(losses) >= _DEAD and not any(math.isfinite(loss) for loss in losses[-_DEAD:]):
        return f"the last {_DEAD} losses are no numbers"
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < 2 * _WINDOW:
        return None
    # the lowest of the first: a training may explode within them
    first, last = min(finite[:_WINDOW]), median(finite[-_WINDOW:])
    if last > _EXPLODED * max(first, 0.0) + 1.0:
        return f"the loss exploded from {first:.3g} to {last:.3g}"
    return None
