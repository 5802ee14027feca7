"""The figure of a run: every submission over time with its interval, the baseline, the held-out result.

It is drawn by a process of its own (matplotlib brings numpy, which the harness does without), started
early enough to have imported everything when the last number arrives. Without matplotlib, or if drawing
fails, the figure's data is written as CSV and a line says so: a picture never ends a run.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from posttrain.core.errors import InfrastructureError
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Grade, Split
from posttrain.core.runs import RunPlan, RunRecord
from posttrain.core.scores import Score
from posttrain.infra.files import write_atomic
from posttrain.infra.processes import Child, Command, Spawner

PNG_NAME = "score_trajectory.png"
CSV_NAME = "score_trajectory.csv"

_logger = logging.getLogger(__name__)


class Mark(Frozen):
    """A score as it is drawn: a value and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, score: Score) -> Mark:
        return cls(value=score.value, low=score.ci95[0], high=score.ci95[1])


class Point(Frozen):
    """One submission."""

    submission_id: int
    elapsed_s: float
    """Start of the budget to acceptance."""
    verdict: str
    score: Mark | None
    selected: bool


class HeldOut(Frozen):
    """The result on the test split."""

    baseline: Mark
    score: Mark
    gain: str
    """The improvement with its interval, in words."""


class Trajectory(Frozen):
    """Everything that the figure shows."""

    title: str
    subtitle: str
    metric: str
    split: Split
    minimize: bool
    timeout_s: float
    points: tuple[Point, ...]
    baseline: Mark | None
    constant_guess: float | None
    held_out: HeldOut | None


class Figure(NamedTuple):
    """What was written."""

    path: Path
    note: str | None
    """Why it is only a CSV."""


def trajectory(grades: Sequence[Grade], *, plan: RunPlan, record: RunRecord, start_time: float) -> Trajectory:
    """The figure of a run; `start_time` in Unix seconds, as run_meta.json has it."""
    holdout = plan.request.protocol == "holdout"
    base = record.val_baseline if holdout else record.test_baseline
    request = plan.request
    return Trajectory(
        title=f"{request.agent} on {request.task}, {request.model}",
        subtitle=" · ".join((plan.run_id, f"{request.protocol} protocol", *record.marks)),
        metric=base.metric.name if base else "score",
        split="val" if holdout else "test",
        minimize=base is not None and base.metric.direction == "minimize",
        timeout_s=request.timeout_s,
        points=tuple(_point(grade, record=record, start_time=start_time) for grade in grades),
        baseline=Mark.of(base) if base else None,
        constant_guess=base.constant_guess if base else None,
        held_out=_held_out(record) if holdout else None,
    )


def _point(grade: Grade, *, record: RunRecord, start_time: float) -> Point:
    return Point(
        submission_id=grade.submission_id,
        elapsed_s=datetime.fromisoformat(grade.timestamp).timestamp() - start_time,
        verdict=grade.status.value,
        score=Mark.of(grade.score) if grade.score else None,
        selected=record.result is not None and record.result.submission_id == grade.submission_id,
    )


def _held_out(record: RunRecord) -> HeldOut | None:
    result = record.result
    if result is None:
        return None
    interval = result.improvement.ci95
    ends = f" [{interval[0]:+.1f}, {interval[1]:+.1f}]" if interval else ""
    return HeldOut(
        baseline=Mark.of(result.baseline),
        score=Mark.of(result.score),
        gain=f"{result.improvement.value:+.1f}{ends}",
    )


class TrajectoryDrawer:
    """Draws one figure. Enter it when the numbers are near; leaving it stops the drawing process."""

    def __init__(self, spawner: Spawner, *, env: Mapping[str, str], log: Path) -> None:
        """`env` needs PATH and HOME (matplotlib keeps its list of fonts there)."""
        self._spawner = spawner
        self._env = {"MPLBACKEND": "agg", **env}
        self._log = log
        self._child: Child | None = None

    def __enter__(self) -> Self:
        if importlib.util.find_spec("matplotlib") is not None:
            command = Command(
                argv=[sys.executable, "-m", "posttrain.reports.draw"],
                cwd=self._log.parent,
                env=self._env,
                stdin="pipe",
                stdout=self._log,
            )
            try:
                self._child = self._spawner.spawn(command, name="figure")
            except InfrastructureError as error:
                _logger.warning("no figure: %s", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.__exit__(kind, error, trace)
            self._child = None

    def draw(self, data: Trajectory, folder: Path, *, timeout_s: float = 60.0) -> Figure:
        """Write the PNG into `folder`, or the CSV with a note."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / PNG_NAME
        if self._child is None:
            reason = "pip install 'posttrain[plot]' for the picture"
        elif self._drawn(self._child, data, target, timeout_s):
            return Figure(target, None)
        else:
            reason = f"drawing failed, see {self._log.name}"
        path = folder / CSV_NAME
        write_atomic(path, as_csv(data))
        return Figure(path, f"the figure's data as CSV: {reason}")

    def _drawn(self, child: Child, data: Trajectory, target: Path, timeout_s: float) -> bool:
        request = DrawRequest(target=str(target), data=data)
        assert child.stdin is not None
        try:
            child.stdin.write(request.model_dump_json().encode() + b"\n")
            child.stdin.close()
        except OSError:  # it died at its start
            return False
        return child.wait(timeout_s) == 0 and target.is_file()


class DrawRequest(Frozen):
    """The one line that the drawing process reads."""

    target: str
    data: Trajectory


def as_csv(data: Trajectory) -> str:
    """The submissions of a figure, one a line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("submission_id", "elapsed_s", "verdict", "score", "ci_low", "ci_high", "selected"))
    for point in data.points:
        score = point.score
        numbers = ("", "", "") if score is None else (score.value, score.low, score.high)
        cells = (f"{number:.2f}" if isinstance(number, float) else number for number in numbers)
        writer.writerow(
            (point.submission_id, f"{point.elapsed_s:.1f}", point.verdict, *cells, point.selected)
        )
    return text.getvalue()
