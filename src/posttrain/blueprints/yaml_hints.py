"""Warnings for the experiment's YAML where it has an `ajet:` tree; none for any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.blueprints.machine import Machine

_COMMON = "ajet.trainer_common"
_MANY_EPOCHS = 50
"""AgentJet's own default; fewer may end before the limit does."""


def yaml_hints(values: Mapping[str, Any], *, codebase: Path, machine: Machine) -> Iterator[tuple[str, str]]:
    """(dotted key, warning) for every hint of the format that the YAML does not follow."""
    if not any(name.split(".", 1)[0] == "ajet" for name in values):
        return
    if values.get("ajet.execute_test") is not False:
        yield "ajet.execute_test", "should be False: True ends training when the reward is below a threshold"
    if values.get(f"{_COMMON}.val_before_train") is not True:
        yield f"{_COMMON}.val_before_train", "should be True: the score before training is the comparison"
    if not _at_least(values.get(f"{_COMMON}.test_freq"), 1):
        yield f"{_COMMON}.test_freq", "should be 1 or more: the number of steps between evaluations"
    if not _at_least(values.get(f"{_COMMON}.total_epochs"), _MANY_EPOCHS):
        yield f"{_COMMON}.total_epochs", "should be so large (50 or more) that the time limit ends the run"
    yield from _gpus(values.get(f"{_COMMON}.n_gpus_per_node"), machine)
    yield from _results(values.get(f"{_COMMON}.val_print_to_markdown_file_path"), codebase, machine)


def validation_file(values: Mapping[str, Any], codebase: Path) -> Path | None:
    """Where the run writes its evaluations; None where the YAML does not say."""
    value = values.get(f"{_COMMON}.val_print_to_markdown_file_path")
    return codebase / value if isinstance(value, str) and value.strip() else None


def _gpus(wanted: Any, machine: Machine) -> Iterator[tuple[str, str]]:
    visible = machine.gpu_count()
    if not isinstance(wanted, int) or wanted < 1:
        yield f"{_COMMON}.n_gpus_per_node", "is not set"
    elif wanted > visible:
        yield f"{_COMMON}.n_gpus_per_node", f"is {wanted}, but {visible} GPU(s) are visible here"


def _results(value: Any, codebase: Path, machine: Machine) -> Iterator[tuple[str, str]]:
    name = f"{_COMMON}.val_print_to_markdown_file_path"
    if not isinstance(value, str) or not value.strip():
        yield name, "is not set: evaluations are read from this file"
        return
    facts = machine.facts(codebase / value)
    if facts.kind == "folder" or not facts.writable:
        yield name, f"cannot be written: {codebase / value}"


def _at_least(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
