"""Where the rows of a task come from: local folders first, then the hub.

A task's `data.py` gets a `DataSource` and never learns which road its rows took. Values come as they
stand in the file; the task decides what they mean.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra import hub
from posttrain.infra.fetching import Progress
from posttrain.infra.files import write_json
from posttrain.infra.locks import held
from posttrain.infra.models import Sources

Row = dict[str, Any]

_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".csv")
_WHOLE_SET = {None, "main", "default"}
"""Names of a data set's only configuration; local folders do not show them."""
_PART = re.compile(r"[A-Za-z0-9_][\w.-]{0,127}", re.ASCII)


class DataSource(Protocol):
    """What `prepare(target, *, source)` of a task may ask for."""

    def rows(self, dataset: str, config: str | None, split: str) -> Iterator[Row]:
        """The rows of one split, in the source's order. UsageError if it is nowhere or not readable."""
        ...

    def file(self, name: str, *, dataset: str | None = None) -> Path:
        """A file of the task's local folder, else of the hub data set `dataset`; UsageError if nowhere."""
        ...

    def find(self, name: str) -> Path | None:
        """A file of the task's local folder, or None."""
        ...


@dataclass(frozen=True)
class TaskSource:
    """The data source of one task.

    A split is looked for as `<root>/<task>/<split>` with one of the endings .jsonl, .jsonl.gz, .json
    and .csv, then under the data set's own name instead of the task's; with a configuration as
    `<config>/<split>`, `<config>-<split>` or `<config>`. Roots are the folders of `sources.data`, then
    `datasets/` of the adopted ones. The lab home comes next, then the hub.
    """

    task: str
    lab: LabPaths
    sources: Sources
    offline: bool
    progress: Progress

    @property
    def roots(self) -> tuple[Path, ...]:
        return (*self.sources.data, *(folder / "datasets" for folder in self.sources.adopted))

    def rows(self, dataset: str, config: str | None, split: str) -> Iterator[Row]:
        """As DataSource says. A local file wins over the hub even if it is damaged: it is named then."""
        _check_names(dataset, config, split)
        path = self._local_split(dataset, config, split) or self._hub_split(dataset, config, split)
        return read_rows(path)

    def find(self, name: str) -> Path | None:
        """As DataSource says."""
        _check_names(*name.split("/"))
        paths = (root / self.task / name for root in self.roots)
        return next((path for path in paths if path.is_file()), None)

    def file(self, name: str, *, dataset: str | None = None) -> Path:
        """As DataSource says."""
        if found := self.find(name):
            return found
        looked = [root / self.task / name for root in self.roots]
        if dataset is None:
            raise _nowhere(f"task {self.task}: {name}", looked, "")
        _check_names(dataset)
        target = self.lab.hub_rows / dataset / "files" / name
        if target.is_file():
            return target
        if self.offline:
            raise _nowhere(f"data set {dataset}: {name}", [*looked, target], "the lab is offline")
        return self._fetch(hub.FileJob(dataset=dataset, name=name, target=str(target)), target)

    def _local_split(self, dataset: str, config: str | None, split: str) -> Path | None:
        return next((path for path in self._candidates(dataset, config, split) if path.is_file()), None)

    def _candidates(self, dataset: str, config: str | None, split: str) -> Iterator[Path]:
        stems = [split] if config in _WHOLE_SET else [f"{config}/{split}", f"{config}-{split}", f"{config}"]
        folders = dict.fromkeys((self.task, dataset.rsplit("/", 1)[-1], dataset))
        for root in self.roots:
            for folder in folders:
                for stem in stems:
                    for ending in _ENDINGS:
                        yield root / folder / f"{stem}{ending}"

    def _hub_split(self, dataset: str, config: str | None, split: str) -> Path:
        target = self.lab.hub_rows / dataset / (config or "default") / f"{split}.jsonl"
        if target.is_file():
            return target
        if self.offline:
            first = list(self._candidates(dataset, config, split))[:: len(_ENDINGS)]
            raise _nowhere(f"data set {dataset} ({split})", [*first, target], "the lab is offline")
        return self._fetch(
            hub.RowsJob(dataset=dataset, config=config, split=split, target=str(target)), target
        )

    def _fetch(self, job: hub.RowsJob | hub.FileJob, target: Path) -> Path:
        """Bring a file from the hub under a lock; it appears whole or not at all."""
        label = target.relative_to(self.lab.hub_rows).as_posix()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with held(target.with_name(f".{target.name}.lock"), label, self.progress):
                if target.is_file():
                    return target
                log = target.with_name(f".{target.name}.log")
                environment = self.sources.environment
                fetched = hub.fetch(job, environment=environment, log=log, progress=self.progress)
                write_json(target.with_name(f".{target.name}.source.json"), fetched)
                log.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"{error.filename or target}: {error.strerror or error}") from error
        except InfrastructureError as error:
            raise UsageError(f"{error}; or put the rows into {target}") from error
        return target


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a local file, checked one by one; UsageError names the file and the line."""
    count = 0
    with _readable(path):
        for number, row in enumerate(_documents(path), start=1):
            if not isinstance(row, dict):
                raise UsageError(f"{path}: row {number} is not an object with named fields")
            count = number
            yield row
    if count == 0:
        raise UsageError(f"{path}: holds no rows")


def _documents(path: Path) -> Iterator[Any]:
    if path.name.endswith(".json"):
        value = json.loads(path.read_bytes())
        # BIG-bench's form: rows stand under `examples` beside canary and description
        yield from value["examples"] if isinstance(value, dict) and "examples" in value else _listed(value)
        return
    with _text(path) as file:
        if path.name.endswith(".csv"):
            yield from csv.DictReader(file, strict=True)
            return
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number} is not JSON") from error


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("neither a list of rows nor an object with `examples`")
    return value


def _text(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8", newline="" if path.name.endswith(".csv") else None)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, zlib.error, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def _check_names(*names: str | None) -> None:
    """Names become parts of paths: nothing that leads out of the folder is let through."""
    for name in names:
        for part in (name or "default").split("/"):
            if _PART.fullmatch(part) is None:
                raise UsageError(f"data: {name!r} is not a name")


def _nowhere(what: str, looked: list[Path], why: str) -> UsageError:
    places = ", ".join(str(path) for path in dict.fromkeys(looked)) or "no folder (POSTTRAIN_DATA is not set)"
    reason = f" and {why}" if why else ""
    return UsageError(f"{what}: not found{reason}; put it into one of: {places} (or set POSTTRAIN_DATA)")
