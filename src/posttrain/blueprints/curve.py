"""The figure of an experiment: its evaluations, or else its training values, over steps.

Drawn by a process of its own (draw_curve.py), because matplotlib brings numpy and three times our memory.
Without it the numbers are there as CSV, and a line says so.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from posttrain.blueprints.metrics import MetricRow
from posttrain.blueprints.plateau import standard_error
from posttrain.core.frozen import Frozen

_TIMEOUT_S = 120.0
_MOST_LINES = 6


class CurvePoint(Frozen):
    x: float
    y: float
    error: float | None = None


class CurveLine(Frozen):
    name: str
    points: tuple[CurvePoint, ...]


class Curve(Frozen):
    """What the drawing process reads."""

    title: str
    kind: str
    lines: tuple[CurveLine, ...]
    target: str


def curve_lines(evaluations: Sequence[MetricRow], training: Sequence[MetricRow]) -> tuple[CurveLine, ...]:
    """Scores of evaluations if there are two, else the telling training values."""
    if len(evaluations) >= 2:
        names = [
            name
            for name in evaluations[-1].values
            if name == "mean_reward" or name.startswith("task_pass_rate@")
        ]
        return tuple(_line(name, evaluations) for name in names[:_MOST_LINES])
    count: dict[str, int] = {}
    for row in training:
        for name in row.values:
            if any(word in name.lower() for word in ("loss", "reward", "accuracy", "score")):
                count[name] = count.get(name, 0) + 1
    names = sorted((name for name in count if count[name] >= 2), key=lambda name: (-count[name], len(name)))
    lines: dict[tuple[CurvePoint, ...], CurveLine] = {}
    for name in names:  # the same values under two names are drawn once
        line = _line(name, training)
        lines.setdefault(line.points, line)
    return tuple(lines.values())[:_MOST_LINES]


def curve_csv(lines: Sequence[CurveLine]) -> str:
    """The figure's numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("name", "step", "value", "stderr"))
    for line in lines:
        writer.writerows((line.name, p.x, p.y, "" if p.error is None else p.error) for p in line.points)
    return text.getvalue()


def draw_curve(curve: Curve) -> str | None:
    """Draw it; None if that went well, else a sentence that says why there is no figure."""
    if importlib.util.find_spec("matplotlib") is None:
        return "No figure: matplotlib is not installed (extra `plot`); its numbers are in curve.csv."
    argv = [sys.executable, "-m", "posttrain.blueprints.draw_curve"]
    try:
        done = subprocess.run(
            argv,
            input=curve.model_dump_json(),
            text=True,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"No figure: drawing failed ({error}); its numbers are in curve.csv."
    if done.returncode == 0 and Path(curve.target).is_file():
        return None
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"No figure: drawing failed ({last}); its numbers are in curve.csv."


def _line(name: str, rows: Sequence[MetricRow]) -> CurveLine:
    with_name = [row for row in rows if name in row.values]
    stepped = all(row.step is not None for row in with_name)
    points = (
        CurvePoint(
            x=row.step if stepped and row.step is not None else float(index),
            y=row.values[name],
            error=standard_error(row, name) if row.is_evaluation else None,
        )
        for index, row in enumerate(with_name)
    )
    return CurveLine(name=name, points=tuple(points))
