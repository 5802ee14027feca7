"""Whose weights are these? The lab's siblings of a base model, and what follows from distances to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from posttrain.core.errors import Rejected, UsageError
from posttrain.core.grading import Provenance
from posttrain.core.paths import LabPaths

MERGE_COSINE = 0.5
"""From here a change of the base counts as a step towards a sibling; honest runs stayed far below it."""
_HINT = "Fine-tune the assigned base; weights of another fine-tune are against the rules (GET /rules)."


def read_siblings(lab: LabPaths, names: Iterable[str]) -> dict[str, Path]:
    """Folders of the siblings that models/siblings.yaml registers under one of a base model's names.

    UsageError that names the entry for what cannot be read or is not there.
    """
    path = lab.siblings
    if not path.is_file():
        return {}
    try:
        table = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())}") from error
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise UsageError(f"{path}: must map the name of a base model to a list of siblings")
    entries = [entry for name in dict.fromkeys(names) for entry in _listed(table, name, path)]
    found: dict[str, Path] = {}
    for entry in entries:
        sibling, folder = _entry(entry, lab)
        if not (folder / "config.json").is_file():
            raise UsageError(f"{path}: sibling {sibling}: no model in {folder}")
        found[sibling] = folder
    return found


def _listed(table: Mapping[Any, Any], name: str, path: Path) -> list[Any]:
    entries = table.get(name) or []
    if not isinstance(entries, list):
        raise UsageError(f"{path}: {name}: must be a list of model names or of {{name, folder}}")
    return entries


def _entry(entry: Any, lab: LabPaths) -> tuple[str, Path]:
    """A name and a folder: of a model in the lab home by its name alone, of any other by both."""
    if isinstance(entry, str) and entry:
        return entry, lab.model(entry)
    if isinstance(entry, dict) and entry.keys() == {"name", "folder"}:
        return str(entry["name"]), lab.models / str(entry["folder"])  # an absolute folder stays what it is
    raise UsageError(f"{lab.siblings}: {entry!r} is neither a model's name nor {{name, folder}}")


def flags_of(provenance: Provenance | None) -> tuple[str, ...]:
    """`merge_of:<sibling>` for each sibling towards which the base was moved. The operator decides."""
    if provenance is None or provenance.copy_of_base:
        return ()
    return tuple(
        f"merge_of:{sibling.name}"
        for sibling in provenance.siblings
        if sibling.cosine is not None and sibling.cosine >= MERGE_COSINE
    )


def refuse_siblings(provenance: Provenance) -> None:
    """Raise Rejected for weights that are a sibling's, bit for bit."""
    if provenance.copy_of_base:
        return
    for sibling in provenance.siblings:
        if sibling.identical:
            raise Rejected(f"is({sibling.name}): these are the weights of another model", hint=_HINT)
