"""The first state of an experiment: checked, what an earlier run left put away, the first attempt planned."""

from __future__ import annotations

import time
from pathlib import Path

from posttrain.blueprints import archive
from posttrain.blueprints.blueprint import Blueprint
from posttrain.blueprints.check import check
from posttrain.blueprints.machine import Machine
from posttrain.blueprints.outcome import Outcome
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.repair import Variation
from posttrain.blueprints.setting import Setting
from posttrain.blueprints.state import Attempt, Finish, State
from posttrain.blueprints.versions import find_versions
from posttrain.blueprints.yaml_hints import validation_file
from posttrain.blueprints.yaml_text import scalars
from posttrain.core.errors import UsageError


def read_blueprint(source: Path) -> str:
    """Its text; UsageError if it cannot be read."""
    try:
        return source.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror or error}") from error


def begin(text: str, *, digest: str, source: Path, paths: StatePaths, setting: Setting) -> State:
    """A state with its first attempt, or one that is finished as invalid. Nothing has been run yet."""
    machine = setting.machine
    checked = check(text, source=source.resolve(), machine=machine)
    checked = archive.without_foreign_results(checked, source, machine)
    archive.put_state_away(paths)
    results = archive.usable_results(checked, machine)
    if results is not None:
        archive.put_documents_away(results, machine)
        archive.claim_results(results, source, machine)
    paths.blueprint.write_text(text, "utf-8")
    blueprint = checked.blueprint
    now = time.time()
    invalid = Finish(outcome=Outcome.INVALID, reason="invalid", at=now)
    return State(
        name=paths.root.name,
        source=source.resolve(),
        digest=digest,
        machine=machine.label,
        blueprint=blueprint,
        problems=checked.problems,
        started_at=now,
        deadline=now + (blueprint.max_time_s if blueprint else 0.0),
        gpu=setting.gpu,
        attempts=(_first(blueprint, machine),) if blueprint else (),
        versions=_versions(blueprint, setting) if blueprint else {},
        results=results,
        finish=None if blueprint else invalid,
    )


def plan_attempt(number: int, variation: Variation, *, blueprint: Blueprint, machine: Machine) -> Attempt:
    """An attempt that has not been started."""
    validation = validation_of(variation, blueprint=blueprint, machine=machine)
    size = len(machine.read(validation) or b"") if validation else 0
    return Attempt(number=number, variation=variation, planned_at=time.time(), validation_offset=size)


def validation_of(variation: Variation, *, blueprint: Blueprint, machine: Machine) -> Path | None:
    """The file that the attempt writes its evaluations to, by the YAML that it uses."""
    text = (machine.read(variation.yaml) or b"").decode("utf-8", "replace")
    return validation_file(scalars(text), blueprint.codebase)


def _first(blueprint: Blueprint, machine: Machine) -> Attempt:
    variation = Variation(command=blueprint.command, yaml=blueprint.yaml)
    return plan_attempt(1, variation, blueprint=blueprint, machine=machine)


def _versions(blueprint: Blueprint, setting: Setting) -> dict[str, str]:
    return find_versions(blueprint, machine=setting.machine, env=setting.environment(blueprint))
