"""All that the documents of an experiment say, as one value: result.json is it, result.md shows it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from posttrain.blueprints.blueprint import Problem
from posttrain.blueprints.compare import Compared
from posttrain.blueprints.detect import Finding
from posttrain.blueprints.metrics import MetricRow
from posttrain.blueprints.outcome import Outcome
from posttrain.blueprints.progress import Progress
from posttrain.blueprints.state import Attempt, Event, State
from posttrain.blueprints.watch import Observation
from posttrain.core.frozen import Frozen

SCHEMA = 1
_MOST_SERIES = 14
_TELLING = ("loss", "reward", "accuracy", "score", "kl", "entropy", "grad_norm", "learning_rate")


class Series(Frozen):
    """A training value over the run."""

    name: str
    n: int
    first: float
    last: float
    low: float
    high: float


class Report(Frozen):
    """One experiment that has ended."""

    schema_version: int = SCHEMA
    name: str
    blueprint: Path
    purpose: str
    outcome: Outcome
    reason: str
    exit_code: int | None
    started_at: str
    finished_at: str
    duration_s: float
    limit_s: float | None
    machine: str | None
    command: str | None
    codebase: Path | None
    python: Path | None
    yaml: Path | None
    versions: dict[str, str]
    kill_mode: str | None
    progress: Progress | None
    leftovers: tuple[str, ...]
    lost_log_bytes: int
    evaluations: tuple[MetricRow, ...]
    training: tuple[Series, ...]
    attempts: tuple[Attempt, ...]
    findings: tuple[Finding, ...]
    """Faults seen in the log of the last attempt, also those that it survived."""
    problems: tuple[Problem, ...]
    compared: tuple[Compared, ...]
    events: tuple[Event, ...]
    last_lines: tuple[str, ...]


def make_report(
    state: State, observation: Observation | None, *, events: Sequence[Event], compared: Sequence[Compared],
    last_lines: Sequence[str],
) -> Report:  # fmt: skip
    """From what the executor knows."""
    assert state.finish is not None
    blueprint = state.blueprint
    endings = [attempt.ending for attempt in state.attempts if attempt.ending is not None]
    return Report(
        name=state.name,
        blueprint=state.source,
        purpose=blueprint.purpose if blueprint else "",
        outcome=state.finish.outcome,
        reason=state.finish.reason,
        exit_code=state.finish.exit_code,
        started_at=iso(state.started_at),
        finished_at=iso(state.finish.at),
        duration_s=round(state.finish.at - state.started_at, 1),
        limit_s=blueprint.max_time_s if blueprint else None,
        machine=state.machine,
        command=state.attempt.variation.command
        if state.attempts
        else (blueprint.command if blueprint else None),
        codebase=blueprint.codebase if blueprint else None,
        python=blueprint.python if blueprint else None,
        yaml=state.attempt.variation.yaml if state.attempts else None,
        versions=state.versions,
        kill_mode=endings[-1].kill_mode if endings else None,
        progress=observation.progress.progress if observation else None,
        leftovers=tuple(name for ending in endings for name in ending.leftovers),
        lost_log_bytes=sum(ending.lost_bytes for ending in endings),
        evaluations=tuple(observation.metrics.evaluations) if observation else (),
        training=tuple(series_of(observation.metrics.training)) if observation else (),
        attempts=state.attempts,
        findings=observation.detector.findings if observation else (),
        problems=state.problems,
        compared=tuple(compared),
        events=tuple(events),
        last_lines=tuple(last_lines),
    )


def series_of(rows: Sequence[MetricRow]) -> list[Series]:
    """Each name with its first, last and extreme values; the telling names first.

    What is always zero, or the same as a value that is shown already, is left out.
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.values.items():
            values.setdefault(name, []).append(value)
    shown: dict[str, list[float]] = {}
    for name in sorted(values, key=lambda name: (_rank(name), -len(values[name]), len(name), name)):
        if any(values[name]) and values[name] not in shown.values() and len(shown) < _MOST_SERIES:
            shown[name] = values[name]
    return [
        Series(name=name, n=len(v), first=v[0], last=v[-1], low=min(v), high=max(v))
        for name, v in shown.items()
    ]


def iso(at: float) -> str:
    """Local time with its offset, to the second."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


def _rank(name: str) -> int:
    plain = name.lower()
    return next((rank for rank, word in enumerate(_TELLING) if word in plain), len(_TELLING))
