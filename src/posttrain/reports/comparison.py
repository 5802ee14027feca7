"""Comparing runs: the lift over the best control of the same setting, and means over repeated runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from posttrain.core.frozen import Frozen
from posttrain.reports.results import ResultRow


class Setting(NamedTuple):
    """What must be equal for two runs to be compared."""

    task: str
    base_model: str
    timeout_s: float | None
    protocol: str
    split: str
    n: int | None


class Control(Frozen):
    """The best control of a setting: the one whose runs improved the most on average."""

    agent: str
    improvement: float
    runs: int


class Group(Frozen):
    """All runs of one agent in one setting."""

    task: str
    base_model: str
    agent: str
    driver_model: str
    timeout_s: float | None
    protocol: str
    runs: int
    not_scored: int
    """Runs without a result: told, never averaged as 0."""
    improvement: float | None
    """Mean over the scored runs."""
    spread: float | None
    """Standard deviation over the scored runs; None for fewer than two."""
    control: Control | None
    lift: float | None


def setting(row: ResultRow, budgets: Mapping[str, float]) -> Setting:
    """The setting of a run; `budgets` are seconds by run id, a run without one compares with its like."""
    return Setting(row.task, row.base_model, budgets.get(row.run_id), row.protocol, row.split, row.n)


def best_controls(
    rows: Iterable[ResultRow], *, controls: Collection[str], budgets: Mapping[str, float]
) -> dict[Setting, list[Control]]:
    """The controls of every setting that have a result, the best first."""
    found: dict[Setting, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.improvement is not None and _base(row.agent) in controls:
            found[setting(row, budgets)][row.agent].append(row.improvement)
    return {
        where: sorted(
            (
                Control(agent=agent, improvement=fmean(values), runs=len(values))
                for agent, values in agents.items()
            ),
            key=lambda control: -control.improvement,
        )
        for where, agents in found.items()
    }


def control_for(row: ResultRow, controls: Mapping[Setting, list[Control]], where: Setting) -> Control | None:
    """The best control of the same setting that is not the agent itself."""
    return next((c for c in controls.get(where, []) if _base(c.agent) != _base(row.agent)), None)


def lift(row: ResultRow, control: Control | None) -> float | None:
    """Points by which a run improved more than the control did on average."""
    return None if control is None or row.improvement is None else row.improvement - control.improvement


def groups(
    rows: Sequence[ResultRow], *, controls: Collection[str], budgets: Mapping[str, float]
) -> tuple[Group, ...]:
    """Runs of equal setting and agent together, in order of first appearance."""
    best = best_controls(rows, controls=controls, budgets=budgets)
    # a run without a result has no split and no n: it belongs to the group its other settings name
    together: dict[tuple[str, ...], list[ResultRow]] = defaultdict(list)
    for row in rows:
        budget = str(budgets.get(row.run_id))
        key = (row.task, row.base_model, row.agent, row.driver_model, budget, row.protocol)
        together[key].append(row)
    return tuple(_group(members, best=best, budgets=budgets) for members in together.values())


def _group(
    members: Sequence[ResultRow], *, best: Mapping[Setting, list[Control]], budgets: Mapping[str, float]
) -> Group:
    first = members[0]
    scored = [row for row in members if row.improvement is not None]
    values = [row.improvement for row in scored if row.improvement is not None]
    mean = fmean(values) if values else None
    control = control_for(scored[0], best, setting(scored[0], budgets)) if scored else None
    return Group(
        task=first.task,
        base_model=first.base_model,
        agent=first.agent,
        driver_model=first.driver_model,
        timeout_s=budgets.get(first.run_id),
        protocol=first.protocol,
        runs=len(members),
        not_scored=len(members) - len(scored),
        improvement=mean,
        spread=stdev(values) if len(values) > 1 else None,
        control=control,
        lift=mean - control.improvement if mean is not None and control is not None else None,
    )


def _base(agent: str) -> str:
    """An agent without its profile."""
    return agent.partition(":")[0]
