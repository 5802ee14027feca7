"""What a repair is: a proposal as data, judged before it is carried out, recorded after.

A `Repairer` gets the case and proposes; `rules.py` is the one that ships. Whoever proposes, only the
actions below are carried out: nothing of the user's is overwritten or deleted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field

from posttrain.blueprints.blueprint import Blueprint
from posttrain.blueprints.detect import Finding
from posttrain.blueprints.machine import Machine
from posttrain.blueprints.status import Ending
from posttrain.core.errors import InfrastructureError
from posttrain.core.frozen import Frozen


class Variation(Frozen):
    """What an attempt runs; the first one runs the blueprint as it stands."""

    command: str
    yaml: Path
    env: dict[str, str] = Field(default_factory=dict)
    """On top of the experiment's environment."""
    prefix: tuple[str, ...] = ()
    """Put before the whole script, as `proxychains4 -q`."""


class MakeFolder(Frozen):
    kind: Literal["make_folder"] = "make_folder"
    path: Path


class MoveAside(Frozen):
    kind: Literal["move_aside"] = "move_aside"
    path: Path
    target: Path


class WriteCopy(Frozen):
    """A changed copy of a file, under a new name."""

    kind: Literal["write_copy"] = "write_copy"
    path: Path
    text: str


Action = Annotated[MakeFolder | MoveAside | WriteCopy, Field(discriminator="kind")]


class Repair(Frozen):
    """One change, and what is run next because of it."""

    by: str
    """Name of the rule, or of who else proposed it."""
    why: str
    changes: tuple[str, ...]
    """One sentence each, for people."""
    variation: Variation
    actions: tuple[Action, ...] = ()


class RepairCase(Frozen):
    """All that a repairer gets to know."""

    blueprint: Blueprint
    variation: Variation
    """What was run."""
    finding: Finding
    ending: Ending
    yaml_text: str
    """Of the YAML that was used."""
    log_tail: str
    earlier: tuple[Repair, ...]
    number: int
    """Of this repair: 1, 2, …"""
    seconds_left: float = math.inf
    """Of the experiment's limit."""


class Repairer(Protocol):
    """Proposes what to change after a failure."""

    @property
    def name(self) -> str: ...

    def propose(self, case: RepairCase) -> Repair | None:
        """None if it knows nothing that it has not tried; RefusedRepair if what it found may not be done."""
        ...


class RefusedRepair(InfrastructureError):
    """A proposal that is not carried out, and why: it would have touched what must not be touched."""


def first_proposal(case: RepairCase, repairers: Sequence[Repairer]) -> tuple[Repair | None, tuple[str, ...]]:
    """The first repair that anybody proposes, and what was refused before it."""
    refused: list[str] = []
    for repairer in repairers:
        try:
            repair = repairer.propose(case)
        except RefusedRepair as error:
            refused.append(f"{repairer.name}: {error}")
            continue
        if repair is not None:
            return repair, tuple(refused)
    return None, tuple(refused)


def carry_out(repair: Repair, *, blueprint: Blueprint, machine: Machine) -> None:
    """Do the actions. RefusedRepair for a path outside the experiment's folders or a copy over a file."""
    for action in repair.actions:
        _refuse_outside(action.path, blueprint)
        match action:
            case MakeFolder(path=path):
                machine.make_folder(path)
            case MoveAside(path=path, target=target):
                _refuse_outside(target, blueprint)
                machine.move(path, target)
            case WriteCopy(path=path, text=text):
                present = machine.read(path)
                if present is not None and present != text.encode():
                    raise RefusedRepair(f"{path} is there already; a repair writes copies only")
                machine.write(path, text.encode())


def _refuse_outside(path: Path, blueprint: Blueprint) -> None:
    allowed = (blueprint.codebase, blueprint.results)
    if ".." in path.parts or not any(path == root or root in path.parents for root in allowed):
        raise RefusedRepair(f"{path} lies outside the code folder and the result folder")
