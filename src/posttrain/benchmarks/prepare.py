"""From a task folder to split rows on disk: data.py runs once, rows are cut, manifests are written last.

datasets/<task>/
├── private/                          mode 0700
│   ├── source/                       what data.py wrote, with .manifest.json
│   └── <view>/val.jsonl  test.jsonl  .manifest.json
└── visible/<view>/train.jsonl

A view is one way to cut: protocol, salt, split rules and source rows together, named by their digest.
Nothing of a view ever changes, so that runs may hold on to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from posttrain.benchmarks.prepare_child import run_data_py
from posttrain.benchmarks.prompts import exemplar_rows
from posttrain.benchmarks.splits import (
    Cut,
    Row,
    Salt,
    cut,
    limited,
    make_items,
    reads_as,
    round_robin,
    split_key,
)
from posttrain.core.errors import PluginError, UsageError, boundary
from posttrain.core.frozen import Frozen
from posttrain.core.paths import LabPaths
from posttrain.core.runs import Mode
from posttrain.core.scores import Item
from posttrain.core.specs import TaskSpec
from posttrain.infra.digests import digest_bytes, digest_file, digest_tree, digest_value
from posttrain.infra.files import read_jsonl, write_json, write_jsonl
from posttrain.infra.processes import Spawner

_MANIFEST = ".manifest.json"
_VIEW_LENGTH = 16


class DataSource(Protocol):
    """Where rows come from: the hub, or a local folder with the same rows."""

    def rows(self, dataset: str, config: str | None, split: str) -> Iterable[Row]:
        """The rows of one split. UsageError names the exact path to fill when they cannot be had."""
        ...

    def file(self, dataset: str, name: str) -> Path:
        """A local copy of one file of a data set's repository."""
        ...


class FolderManifest(Frozen):
    """What a folder of rows was made of; written last, so that only a complete folder has one."""

    made_of: str
    """Digest of everything that decides the rows."""
    files: dict[str, str]
    """Digest of each file."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskData:
    """The rows of a task as one run uses them."""

    visible: Path
    """The folder the agent sees: train.jsonl, or nothing where the task has no visible rows."""
    visible_rows: int
    val: tuple[Item, ...]
    test: tuple[Item, ...]
    digest: str
    """Of spec, folder, visible rows and item ids in order."""
    notes: tuple[str, ...] = ()


def prepare_task(
    spec: TaskSpec,
    *,
    lab: LabPaths,
    source: DataSource,
    spawner: Spawner,
    salt: Salt = "public",
    protocol: Mode = "holdout",
    limit: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> TaskData:
    """The splits of `spec`, made on the first call and read from then on; the same on every machine.

    `limit` takes the first items of val and test in split order. `environment` is what a task's own
    download may know of the host (proxies, the hub's settings); without it hubs are off. PluginError
    where the task's code or rows are at fault, UsageError where rows cannot be had.
    """
    folder = lab.dataset(spec.data_name)
    folder.mkdir(parents=True, exist_ok=True)
    key = split_key(lab, salt)
    with FileLock(folder / ".lock"):
        if spec.procedural:
            made_of, make = _procedural(spec, key=key, spawner=spawner, scratch=folder / "private")
        else:
            rows = _source(spec, folder=folder, source=source, spawner=spawner, environment=environment)
            made_of, make = _cut_rows(spec, rows, key=key, protocol=protocol)
        view = _View(folder, f"{protocol}-{salt}-{made_of[:_VIEW_LENGTH]}")
        if not view.complete(made_of):
            view.write(make(), made_of)
        return view.read(spec, limit=limit)


class _View:
    """One way to cut the rows, on disk."""

    def __init__(self, folder: Path, name: str) -> None:
        self._visible = folder / "visible" / name
        self._private = folder / "private" / name
        self._files = {
            "train.jsonl": self._visible,
            "val.jsonl": self._private,
            "test.jsonl": self._private,
        }

    def complete(self, made_of: str) -> bool:
        manifest = _read_manifest(self._private)
        return (
            manifest is not None
            and manifest.made_of == made_of
            and all(
                (place / name).is_file() and digest_file(place / name) == manifest.files.get(name)
                for name, place in self._files.items()
                if name in manifest.files
            )
        )

    def write(self, splits: Cut, made_of: str) -> None:
        private_folder(self._private.parent)
        for place in (self._visible, self._private):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
        content: dict[str, Sequence[Any]] = {
            "train.jsonl": splits.visible,
            "val.jsonl": [item.fields for item in splits.val],
            "test.jsonl": [item.fields for item in splits.test],
        }
        if not splits.visible:
            del content["train.jsonl"]
        for name, rows in content.items():
            write_jsonl(self._files[name] / name, rows)
        digests = {name: digest_file(self._files[name] / name) for name in content}
        write_json(
            self._private / _MANIFEST, FolderManifest(made_of=made_of, files=digests, notes=splits.notes)
        )

    def read(self, spec: TaskSpec, *, limit: int | None) -> TaskData:
        manifest = _read_manifest(self._private)
        assert manifest is not None
        val = limited(make_items(read_jsonl(self._private / "val.jsonl"), spec.stratify), limit)
        test = limited(make_items(read_jsonl(self._private / "test.jsonl"), spec.stratify), limit)
        visible = (
            sum(1 for _ in read_jsonl(self._visible / "train.jsonl"))
            if "train.jsonl" in manifest.files
            else 0
        )
        digest = digest_value(
            {
                "spec": spec.model_dump(mode="json", by_alias=True, exclude={"folder"}),
                "folder": digest_tree(spec.folder),
                "visible": manifest.files.get("train.jsonl"),
                "val": [item.id for item in val],
                "test": [item.id for item in test],
            }
        )
        return TaskData(
            visible=self._visible,
            visible_rows=visible,
            val=val,
            test=test,
            digest=digest,
            notes=manifest.notes,
        )


def private_folder(path: Path) -> Path:
    """`path`, created with mode 0700: hidden rows are for the lab alone."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


def _procedural(
    spec: TaskSpec, *, key: bytes, spawner: Spawner, scratch: Path
) -> tuple[str, Callable[[], Cut]]:
    """What decides the rows of a procedural task, and how to draw them."""
    rules = {"train": spec.splits.train, "val": spec.splits.val, "test": spec.splits.test}
    sizes = {name: rule.size for name, rule in rules.items() if rule is not None and rule.size is not None}
    if set(sizes) != set(rules):
        raise PluginError(f"{spec.folder.name}: splits: a procedural task states a size for each split")

    def make() -> Cut:
        target = private_folder(scratch) / "drawing"
        run_data_py(spec, target=target, spawner=spawner, source=None, sizes=sizes, key=key)
        rows = read_rows(target, spec.folder.name)
        shutil.rmtree(target)
        val, test = (
            make_items(round_robin(rows[name], spec.stratify), spec.stratify) for name in ("val", "test")
        )
        return Cut(visible=tuple(rows["train"]), val=val, test=test)

    made_of = {
        "code": digest_tree(spec.folder),
        "sizes": sizes,
        "key": digest_bytes(key),
        "by": spec.stratify,
    }
    return digest_value(made_of), make


def _cut_rows(
    spec: TaskSpec, rows: dict[str, list[Row]], *, key: bytes, protocol: Mode
) -> tuple[str, Callable[[], Cut]]:
    """What decides how given rows are cut, and how to cut them."""
    exclude = frozenset(reads_as(row, spec.prompt.template) for row in exemplar_rows(spec.folder))
    made_of = {
        "rows": {name: digest_value(file_rows) for name, file_rows in rows.items()},
        "splits": spec.splits.model_dump(mode="json", by_alias=True),
        "stratify": spec.stratify,
        "template": spec.prompt.template,
        "exclude": sorted(exclude),
        "key": digest_bytes(key),
        "protocol": protocol,
    }
    return digest_value(made_of), lambda: cut(rows, spec, key=key, protocol=protocol, exclude=exclude)


def _source(
    spec: TaskSpec,
    *,
    folder: Path,
    source: DataSource,
    spawner: Spawner,
    environment: Mapping[str, str] | None,
) -> dict[str, list[Row]]:
    """The rows that lie in the folder or that its code writes, from disk if it has written them before."""
    downloads = (spec.folder / "download_data.py").is_file() and not (
        spec.folder / "data/train.jsonl"
    ).is_file()
    if not (spec.folder / "data.py").is_file() and not downloads:
        return read_rows(spec.folder / "data", spec.folder.name)
    target = private_folder(folder / "private") / "source"
    made_of = digest_tree(spec.folder)
    manifest = _read_manifest(target)
    if manifest is None or manifest.made_of != made_of or not _intact(target, manifest):
        fresh = target.with_name("source.new")
        run_data_py(spec, target=fresh, spawner=spawner, source=source, environment=environment)
        files = {path.name: digest_file(path) for path in sorted(fresh.glob("*.jsonl"))}
        write_json(fresh / _MANIFEST, FolderManifest(made_of=made_of, files=files))
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    return read_rows(target, spec.folder.name)


def read_rows(folder: Path, task: str) -> dict[str, list[Row]]:
    """All .jsonl files of a folder by name; PluginError names file and line of what is no row."""
    rows: dict[str, list[Row]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        with boundary(PluginError, f"task {task}"):
            rows[path.stem] = list(read_jsonl(path))
        for number, row in enumerate(rows[path.stem], start=1):
            if not isinstance(row, dict):
                raise PluginError(f"task {task}: {path.name}, row {number}: not a JSON object")
    if not rows:
        raise PluginError(f"task {task}: no data.py, and no .jsonl file in data/")
    return rows


def _read_manifest(folder: Path) -> FolderManifest | None:
    path = folder / _MANIFEST
    if not path.is_file():
        return None
    with boundary(UsageError, f"{path}: remove the folder to have it made again"):
        return FolderManifest.model_validate_json(path.read_bytes())


def _intact(folder: Path, manifest: FolderManifest) -> bool:
    return all(
        (folder / name).is_file() and digest_file(folder / name) == digest
        for name, digest in manifest.files.items()
    )
