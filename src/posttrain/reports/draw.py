"""The drawing process: reads one DrawRequest line from standard input and writes the PNG it asks for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from posttrain.reports.figures import DrawRequest, Mark, Point, Trajectory

_INK = "#22303c"
_QUIET = "#8794a1"
_SUBMISSION = "#2f6fb2"
_CHOSEN = "#d9622b"
_FAULT = "#b3362c"


def main() -> int:
    """Draw one figure. Exit 2 if standard input ends without a request."""
    line = sys.stdin.buffer.readline()
    if not line.strip():
        return 2
    request = DrawRequest.model_validate_json(line)
    draw(request.data, Path(request.target))
    return 0


def draw(data: Trajectory, target: Path) -> None:
    """Write the figure: submissions over time on the left, the held-out result on the right."""
    figure = Figure(figsize=(9.0, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    if data.held_out is None:
        left = figure.add_subplot()
    else:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[4.2, 1.0])
        _draw_held_out(right, data)
    _draw_submissions(left, data)
    figure.suptitle(data.title, x=0.012, ha="left", fontsize=12.5, color=_INK, fontweight="bold")
    left.set_title(data.subtitle, loc="left", fontsize=8, color=_QUIET)
    temporary = target.with_name(f".{target.name}.tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(target)


def _draw_submissions(axes: Any, data: Trajectory) -> None:
    _style(axes)
    unit, divisor = _time_unit(data)
    end = max([data.timeout_s, *(point.elapsed_s for point in data.points)]) / divisor
    axes.set_xlim(0.0, end * 1.03)
    axes.set_xlabel(f"time since the start ({unit})")
    axes.set_ylabel(f"{data.metric}, {'validation' if data.split == 'val' else data.split} (points)")
    if data.baseline is not None:
        _draw_reference(axes, data.baseline, data.constant_guess)
    graded = [point for point in data.points if point.score is not None]
    _draw_graded(axes, graded, divisor)
    _draw_best(axes, graded, divisor, end=end, minimize=data.minimize)
    _draw_ungraded(axes, [point for point in data.points if point.score is None], divisor)
    if not data.points:
        axes.text(
            0.5, 0.5, "no submissions", transform=axes.transAxes, ha="center", va="center", color=_QUIET
        )
    axes.axvline(data.timeout_s / divisor, color=_QUIET, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.legend(loc="best", fontsize=8, frameon=False)


def _draw_reference(axes: Any, baseline: Mark, constant_guess: float | None) -> None:
    axes.axhspan(baseline.low, baseline.high, color=_QUIET, alpha=0.18, linewidth=0)
    axes.axhline(baseline.value, color=_QUIET, linewidth=1.2, label=f"baseline {baseline.value:.1f}")
    if constant_guess is not None:
        label = f"constant guess {constant_guess:.1f}"
        axes.axhline(constant_guess, color=_QUIET, linewidth=1.0, linestyle=(0, (4, 3)), label=label)


def _draw_graded(axes: Any, points: list[Point], divisor: float) -> None:
    """Submissions with their intervals; the selected one in its own colour."""
    groups = ((False, _SUBMISSION, "submission, 95 % interval"), (True, _CHOSEN, "selected"))
    for selected, color, label in groups:
        chosen = [(point, point.score) for point in points if point.selected is selected and point.score]
        if not chosen:
            continue
        axes.errorbar(
            [point.elapsed_s / divisor for point, _ in chosen],
            [score.value for _, score in chosen],
            yerr=[[s.value - s.low for _, s in chosen], [s.high - s.value for _, s in chosen]],
            fmt="o",
            markersize=6,
            color=color,
            elinewidth=1.3,
            capsize=3,
            label=label,
            zorder=4 if selected else 3,
        )


def _draw_best(axes: Any, points: list[Point], divisor: float, *, end: float, minimize: bool) -> None:
    """The best score so far as a stair that goes on to the end of the budget."""
    times: list[float] = []
    values: list[float] = []
    pick = min if minimize else max
    for point in points:
        if point.score is not None:
            times.append(point.elapsed_s / divisor)
            values.append(pick([point.score.value, *values[-1:]]))
    if values:
        axes.step([*times, end], [*values, values[-1]], where="post", color=_SUBMISSION, alpha=0.45, zorder=2)


def _draw_ungraded(axes: Any, points: list[Point], divisor: float) -> None:
    """What has no score stands at the bottom edge, never at 0."""
    if not points:
        return
    axes.plot(
        [point.elapsed_s / divisor for point in points],
        [0.03] * len(points),
        transform=axes.get_xaxis_transform(),
        linestyle="",
        marker="x",
        color=_FAULT,
        label="not graded",
        clip_on=False,
    )


def _draw_held_out(axes: Any, data: Trajectory) -> None:
    held_out = data.held_out
    assert held_out is not None
    _style(axes)
    for place, mark, color in ((0, held_out.baseline, _QUIET), (1, held_out.score, _CHOSEN)):
        errors = [[mark.value - mark.low], [mark.high - mark.value]]
        axes.errorbar([place], [mark.value], yerr=errors, fmt="D", markersize=7, color=color, capsize=4)
        axes.annotate(
            f"{mark.value:.1f}",
            (place, mark.value),
            (9, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_xlim(-0.6, 1.9)
    axes.set_xticks([0, 1], ["base", "selected"])
    axes.tick_params(labelleft=False, left=False)
    axes.set_title("held-out test", loc="left", fontsize=9, color=_INK)
    axes.set_xlabel(held_out.gain, fontsize=9.5, fontweight="bold")


def _style(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_QUIET)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.grid(axis="y", color=_QUIET, alpha=0.2)
    axes.set_axisbelow(True)


def _time_unit(data: Trajectory) -> tuple[str, float]:
    if data.timeout_s <= 300:
        return "s", 1.0
    return ("min", 60.0) if data.timeout_s <= 3 * 3600 else ("h", 3600.0)


if __name__ == "__main__":
    sys.exit(main())
