"""The figure of a run as SVG text, for pages: no picture library, no style that a strict page forbids.

Only our own numbers and labels go into it; every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from posttrain.reports.figures import Mark, Point, Trajectory
from posttrain.reports.visible import visible

_WIDTH, _HEIGHT = 860.0, 360.0
_LEFT, _TOP, _BOTTOM = 56.0, 18.0, 312.0
_PLAIN_RIGHT, _SPLIT_RIGHT = 840.0, 640.0
_HELD_OUT = (700.0, 780.0)
"""Where base and selected stand in the held-out panel."""
_TICKS = 5
_MOST_POINTS = 2000


@dataclass(frozen=True)
class _Scale:
    """From data to places."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        step = _nice((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def draw_svg(data: Trajectory) -> str:
    """The `<svg>` element: submissions over time on the left, the held-out result on the right."""
    right = _PLAIN_RIGHT if data.held_out is None else _SPLIT_RIGHT
    unit, divisor = _unit(data.timeout_s)
    end = max([data.timeout_s, *(point.elapsed_s for point in data.points)])
    across = _Scale(0.0, end * 1.02, _LEFT, right)
    up = _Scale(*_range(data), _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{_safe(data.title)}</title>",
        *_axes(data, across, up, right=right, unit=unit, divisor=divisor),
        *_reference(data, up, right),
        *_best(data, across, up),
        *_points(data.points[:_MOST_POINTS], across, up),
        *_held_out(data, up),
        "</svg>",
    ]
    return "\n".join(parts)


def _range(data: Trajectory) -> tuple[float, float]:
    marks = [point.score for point in data.points if point.score] + ([data.baseline] if data.baseline else [])
    if data.held_out is not None:
        marks += [data.held_out.baseline, data.held_out.score]
    edges = [edge for mark in marks for edge in (mark.low, mark.high)]
    edges += [data.constant_guess] if data.constant_guess is not None else []
    low, high = min(edges, default=0.0), max(edges, default=100.0)
    room = max(1.0, 0.08 * (high - low))
    return max(0.0, low - room), min(100.0, high + room)


def _axes(
    data: Trajectory, across: _Scale, up: _Scale, *, right: float, unit: str, divisor: float
) -> Iterator[str]:
    for tick in up.ticks():
        yield _line("grid", _LEFT, up(tick), right, up(tick))
        yield _text("tick end", _LEFT - 8, up(tick) + 4, f"{tick:g}")
    times = _Scale(across.low / divisor, across.high / divisor, across.start, across.end)
    for tick in times.ticks():
        yield _text("tick mid", times(tick), _BOTTOM + 18, f"{tick:g}")
    yield _line("axis", _LEFT, _BOTTOM, right, _BOTTOM)
    yield _line("deadline", across(data.timeout_s), _TOP, across(data.timeout_s), _BOTTOM)
    split = "validation" if data.split == "val" else data.split
    yield _text("label mid", (_LEFT + right) / 2, _BOTTOM + 38, f"time since the start ({unit})")
    yield _text("label", _LEFT, _TOP - 6, f"{data.metric}, {split} (points)")


def _reference(data: Trajectory, up: _Scale, right: float) -> Iterator[str]:
    base = data.baseline
    if base is not None:
        top, height = up(base.high), up(base.low) - up(base.high)
        area = f'x="{_LEFT:g}" y="{top:.1f}" width="{right - _LEFT:g}" height="{height:.1f}"'
        yield f'<rect class="band" {area}/>'
        yield _line("base", _LEFT, up(base.value), right, up(base.value))
        yield _text("note end", right - 4, up(base.value) - 5, f"baseline {base.value:.1f}")
    if data.constant_guess is not None:
        place = up(data.constant_guess)
        yield _line("guess", _LEFT, place, right, place)
        # at the other end than the baseline's: the two are often close
        yield _text("note", _LEFT + 4, place - 5, f"constant guess {data.constant_guess:.1f}")


def _best(data: Trajectory, across: _Scale, up: _Scale) -> Iterator[str]:
    """The best score so far as a stair that goes on to the end of the budget."""
    pick: Callable[[float, float], float] = min if data.minimize else max
    best: float | None = None
    path: list[str] = []
    for point in data.points:
        if point.score is None:
            continue
        best = point.score.value if best is None else pick(best, point.score.value)
        place = f"{across(point.elapsed_s):.1f}"
        path.append(f"H{place}V{up(best):.1f}" if path else f"M{place} {up(best):.1f}")
    if path:
        yield f'<path class="best" d="{"".join(path)}H{across(data.timeout_s):.1f}"/>'


def _points(points: Sequence[Point], across: _Scale, up: _Scale) -> Iterator[str]:
    for point in points:
        place = across(point.elapsed_s)
        told = f"submission {point.submission_id}, {point.verdict}"
        if point.score is None:
            # what has no score stands at the bottom edge, never at 0
            yield _titled(f'<path class="fault" d="M{place - 4:.1f} {_BOTTOM - 12:g}l8 8m0 -8l-8 8"/>', told)
            continue
        kind = "chosen" if point.selected else "dot"
        score = f"{told}: {point.score.value:.1f} [{point.score.low:.1f}, {point.score.high:.1f}]"
        yield _whisker(kind, place, point.score, up)
        yield _titled(
            f'<circle class="{kind}" cx="{place:.1f}" cy="{up(point.score.value):.1f}" r="4.5"/>', score
        )


def _held_out(data: Trajectory, up: _Scale) -> Iterator[str]:
    held_out = data.held_out
    if held_out is None:
        return
    yield _text("label", _HELD_OUT[0] - 30, _TOP - 6, "held-out test")
    for place, mark, kind, name in zip(
        _HELD_OUT, (held_out.baseline, held_out.score), ("base", "chosen"), ("base", "selected"), strict=True
    ):
        yield _whisker(kind, place, mark, up)
        yield f'<circle class="{kind}" cx="{place:g}" cy="{up(mark.value):.1f}" r="5.5"/>'
        yield _text("note", place + 10, up(mark.value) + 4, f"{mark.value:.1f}")
        yield _text("tick mid", place, _BOTTOM + 18, name)
    yield _line("axis", _HELD_OUT[0] - 30, _BOTTOM, _HELD_OUT[1] + 50, _BOTTOM)
    yield _text("gain mid", sum(_HELD_OUT) / 2 + 10, _BOTTOM + 38, held_out.gain)


def _whisker(kind: str, place: float, mark: Mark, up: _Scale) -> str:
    return _line(f"{kind} whisker", place, up(mark.low), place, up(mark.high))


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class={quoteattr(kind)} x="{x:.1f}" y="{y:.1f}">{_safe(text)}</text>'


def _titled(element: str, title: str) -> str:
    return f"<g><title>{_safe(title)}</title>{element}</g>"


def _safe(text: str) -> str:
    return escape(visible(text))


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def _unit(timeout_s: float) -> tuple[str, float]:
    if timeout_s <= 300:
        return "s", 1.0
    return ("min", 60.0) if timeout_s <= 3 * 3600 else ("h", 3600.0)
