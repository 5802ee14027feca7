"""Whether evaluations have stopped changing: the only reason to end a healthy run early."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posttrain.blueprints.metrics import MetricRow

_RATES = "task_pass_rate@"


def on_plateau(evaluations: Sequence[MetricRow], *, points: int) -> bool:
    """True if mean_reward and every pass rate moved by no more than one standard error over the last points.

    Where the number of tasks or the spread of rewards is not reported no standard error is known, and
    nothing is called a plateau.
    """
    last = evaluations[-points:]
    if len(last) < points:
        return False
    names = {name for row in last for name in row.values if name == "mean_reward" or name.startswith(_RATES)}
    return bool(names) and all(_flat(last, name) for name in names)


def _flat(rows: Sequence[MetricRow], name: str) -> bool:
    values = [row.values[name] for row in rows if name in row.values]
    errors = [standard_error(row, name) for row in rows]
    known = [error for error in errors if error is not None]
    if len(values) < len(rows) or len(known) < len(rows):
        return False
    return max(values) - min(values) <= sum(known) / len(known)


def standard_error(row: MetricRow, name: str) -> float | None:
    """Of one value of one evaluation, in its own unit; None where it cannot be known."""
    tasks = row.values.get("total_tasks")
    if not tasks or tasks < 1:
        return None
    if name == "mean_reward":
        spread = row.values.get("std_reward")
        return (
            None if spread is None else spread / math.sqrt(tasks)
        )  # answers to one task are not independent
    share = min(1.0, max(0.0, row.values[name]))
    return math.sqrt(share * (1 - share) / tasks)
