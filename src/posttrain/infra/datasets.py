"""Where the rows of a task come from: local folders first, then the hub.

A task's `data.py` asks for them by the hub's names and never learns which road they took. Values come as they
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
from typing import IO, Any

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra import hub
from posttrain.infra.fetching import Progress
from posttrain.infra.files import write_json
from posttrain.infra.locks import held
from posttrain.infra.sources import Sources

Row = dict[str, Any]

_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".csv")
_WHOLE_SET = {None, "main", "default"}
"""Names of a data set's only configuration; local folders do not show them."""
_PART = re.compile(r"[A-Za-z0-9_][\w.-]{0,127}", re.ASCII)


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
        """The rows of one split, in the source's order.

        UsageError names the exact path to fill if they are nowhere. A local file wins over the hub even
        if it is damaged: it is named then.
        """
        _check_names(dataset, config, split)
        path = self._local_split(dataset, config, split) or self._hub_split(dataset, config, split)
        return read_rows(path)

    def file(self, dataset: str, name: str) -> Path:
        """A local copy of one file of a data set's repository; sub-folders may be left out locally."""
        _check_names(dataset, name)
        short = name.rsplit("/", 1)[-1]
        looked = [
            root / folder / file
            for root in self.roots
            for folder in self._folders(dataset)
            for file in dict.fromkeys((name, short))
        ]
        if found := next((path for path in looked if path.is_file()), None):
            return found
        target = self.lab.hub_rows / dataset / "files" / name
        if target.is_file():
            return target
        if self.offline:
            raise self._nowhere(f"data set {dataset}: {name}", short, [*looked, target])
        return self._fetch(hub.FileJob(dataset=dataset, name=name, target=str(target)), target)

    def _nowhere(self, what: str, file: str, looked: list[Path]) -> UsageError:
        places = ", ".join(str(path) for path in looked)
        named = "" if self.sources.data else f", or name a folder with {self.task}/{file} in POSTTRAIN_DATA"
        return UsageError(f"{what}: not found, and the lab is offline; put it at one of: {places}{named}")

    def _folders(self, dataset: str) -> list[str]:
        """Where a root may keep a data set, most telling name first."""
        return list(dict.fromkeys((self.task, dataset.rsplit("/", 1)[-1], dataset)))

    def _local_split(self, dataset: str, config: str | None, split: str) -> Path | None:
        return next((path for path in self._candidates(dataset, config, split) if path.is_file()), None)

    def _candidates(self, dataset: str, config: str | None, split: str) -> Iterator[Path]:
        stems = [split] if config in _WHOLE_SET else [f"{config}/{split}", f"{config}-{split}", f"{config}"]
        for root in self.roots:
            for folder in self._folders(dataset):
                for stem in stems:
                    for ending in _ENDINGS:
                        yield root / folder / f"{stem}{ending}"

    def _hub_split(self, dataset: str, config: str | None, split: str) -> Path:
        target = self.lab.hub_rows / dataset / (config or "default") / f"{split}.jsonl"
        if target.is_file():
            return target
        if self.offline:
            first = list(self._candidates(dataset, config, split))[:: len(_ENDINGS)]
            raise self._nowhere(f"data set {dataset} ({split})", f"{split}.jsonl", [*first, target])
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
        for part in ("default" if name is None else name).split("/"):
            if _PART.fullmatch(part) is None:
                raise UsageError(f"data: {name!r} is not a name")
