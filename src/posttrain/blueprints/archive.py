"""What an earlier run left, put away before a new one begins; a result folder of somebody else is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from posttrain.blueprints.blueprint import Label, Problem
from posttrain.blueprints.check import Checked
from posttrain.blueprints.machine import Machine
from posttrain.blueprints.paths import ResultPaths, StatePaths


def without_foreign_results(checked: Checked, source: Path, machine: Machine) -> Checked:
    """An error more where the result folder is another blueprint's."""
    blueprint = checked.blueprint
    owner = _owner(blueprint.results, machine) if blueprint else None
    if blueprint is None or owner is None or owner == str(source.resolve()):
        return checked
    line = checked.parsed.parts[Label.RESULTS].line
    message = f"belongs to another blueprint, {owner}"
    problem = Problem(line=line, label=Label.RESULTS, level="error", message=message)
    return Checked(None, (*checked.problems, problem), checked.parsed)


def claim_results(results: Path, source: Path, machine: Machine) -> None:
    """Note whose folder this is before anything runs: two blueprints may have been given the same."""
    machine.write(ResultPaths(results).owner, json.dumps({"blueprint": str(source.resolve())}).encode())


def usable_results(checked: Checked, machine: Machine) -> Path | None:
    """Where documents can go: also an invalid blueprint gets its own, where its result folder is sound."""
    if checked.blueprint is not None:
        return checked.blueprint.results
    part = checked.parsed.parts.get(Label.RESULTS)
    faulty = any(problem.label is Label.RESULTS for problem in checked.errors)
    if part is None or faulty or not Path(part.value).is_absolute():
        return None
    return Path(part.value) if machine.facts(Path(part.value)).writable else None


def put_state_away(paths: StatePaths) -> None:
    """Keep the state of an earlier run below `earlier/`."""
    if not paths.state.exists():
        return
    paths.earlier.mkdir(parents=True, exist_ok=True)
    number = 1 + sum(1 for _ in paths.earlier.iterdir())
    target = paths.earlier / str(number)
    target.mkdir()
    for entry in paths.root.iterdir():
        if entry not in {paths.lock, paths.earlier}:
            shutil.move(entry, target / entry.name)


def put_documents_away(results: Path, machine: Machine) -> None:
    """Keep documents of an earlier run below `previous/`; the flag goes first, so that none is believed."""
    folder = ResultPaths(results)
    present = [path for path in reversed(folder.own) if machine.facts(path).kind != "absent"]
    if not present:
        return
    number = 1
    while machine.facts(folder.previous / str(number)).kind != "absent":
        number += 1
    for path in present:
        machine.move(path, folder.previous / str(number) / path.name)


def _owner(results: Path, machine: Machine) -> str | None:
    folder = ResultPaths(results)
    raw = machine.read(folder.owner) or machine.read(folder.flag)
    if raw is None:
        return None
    try:
        return str(json.loads(raw)["blueprint"])
    except (ValueError, KeyError, TypeError):
        return None
