"""Other experiments whose blueprints lie beside this one, for the comparison in result.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError

from posttrain.blueprints.blueprint import Label
from posttrain.blueprints.machine import Machine
from posttrain.blueprints.metrics import MetricRow
from posttrain.blueprints.outcome import Outcome
from posttrain.blueprints.parse import parse
from posttrain.blueprints.paths import ResultPaths
from posttrain.core.frozen import Frozen

_MOST = 40


class Compared(Frozen):
    """What is shown of another experiment."""

    blueprint: str
    purpose: str
    outcome: Outcome
    reason: str
    duration_s: float
    values: dict[str, float]
    """The last evaluation, or else the last training values."""


class _Stored(Frozen):
    """The part of a result.json that is compared; later versions may have more fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    purpose: str
    outcome: Outcome
    reason: str
    duration_s: float
    evaluations: tuple[MetricRow, ...] = ()
    training: tuple[dict[str, Any], ...] = ()


def compared_with(source: Path, *, machine: Machine) -> list[Compared]:
    """Finished experiments of the same folder (or, for `x/blueprint.md`, of `*/blueprint.md` beside it)."""
    found = (_compared(other, source, machine) for other in _siblings(source))
    return [one for one in found if one is not None]


def last_values(evaluations: tuple[MetricRow, ...], training: tuple[dict[str, Any], ...]) -> dict[str, float]:
    """The numbers that experiments are compared by."""
    if evaluations:
        return dict(evaluations[-1].values)
    return {str(series["name"]): float(series["last"]) for series in training if "last" in series}


def _siblings(source: Path) -> Iterator[Path]:
    candidates = set(source.parent.glob("*.md"))
    if source.name == "blueprint.md":
        candidates |= set(source.parent.parent.glob("*/blueprint.md"))
    yield from sorted(candidates - {source})[:_MOST]


def _compared(other: Path, source: Path, machine: Machine) -> Compared | None:
    try:
        part = parse(other.read_text("utf-8-sig")).parts.get(Label.RESULTS)
    except (OSError, UnicodeDecodeError):
        return None
    raw = (
        machine.read(ResultPaths(Path(part.value)).result_json)
        if part and part.value.startswith("/")
        else None
    )
    if raw is None:
        return None
    try:
        stored = _Stored.model_validate_json(raw)
    except ValidationError:
        return None
    name = other.name if other.parent == source.parent else f"{other.parent.name}/{other.name}"
    return Compared(
        blueprint=name,
        purpose=stored.purpose,
        outcome=stored.outcome,
        reason=stored.reason,
        duration_s=stored.duration_s,
        values=last_values(stored.evaluations, stored.training),
    )
