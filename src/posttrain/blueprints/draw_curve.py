"""The drawing process: reads one Curve from standard input and writes the PNG that it asks for."""

from __future__ import annotations

import sys
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from posttrain.blueprints.curve import Curve, CurveLine

_INK = "#22303c"
_QUIET = "#8794a1"
_LINE = "#2f6fb2"


def draw(curve: Curve) -> None:
    """One small panel a line, so that no scale hides another."""
    columns = min(len(curve.lines), 3)
    rows = -(-len(curve.lines) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, line in zip(axes, curve.lines, strict=False):
        _draw_line(panel, line)
    for panel in axes[len(curve.lines) :]:
        panel.set_axis_off()
    figure.suptitle(curve.title, x=0.01, ha="left", fontsize=11, color=_INK, fontweight="bold")
    figure.supxlabel(f"step ({curve.kind})", fontsize=8, color=_QUIET)
    figure.savefig(curve.target, format="png")


def _draw_line(axes: Any, line: CurveLine) -> None:
    x = [point.x for point in line.points]
    y = [point.y for point in line.points]
    marker = "o" if len(x) <= 60 else ""
    axes.plot(x, y, color=_LINE, linewidth=1.4, marker=marker, markersize=3.5)
    if all(point.error is not None for point in line.points):
        errors = [point.error or 0.0 for point in line.points]
        low = [value - error for value, error in zip(y, errors, strict=True)]
        high = [value + error for value, error in zip(y, errors, strict=True)]
        axes.fill_between(x, low, high, color=_LINE, alpha=0.18, linewidth=0)
    axes.set_title(line.name, loc="left", fontsize=9, color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_QUIET, alpha=0.2)
    axes.tick_params(labelsize=8, colors=_INK)


if __name__ == "__main__":
    draw(Curve.model_validate_json(sys.stdin.read()))
