"""The process in which a task folder's data.py runs: foreign code, away from the harness.

One PrepareJob line comes in on standard input, one Prepared or PrepareFailed line goes out. In between
the worker may ask for rows or files of a data set (Wanted) and gets the path of a local file (Given):
the harness fetches, the worker does not. What data.py prints goes to standard error.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from posttrain.benchmarks.splits import bucket
from posttrain.core.errors import PluginError, PosttrainError, UsageError, boundary
from posttrain.core.frozen import Frozen
from posttrain.infra.answering import claim_stdout, send
from posttrain.infra.digests import digest_bytes
from posttrain.infra.files import read_jsonl, write_jsonl

_DRAWS_PER_ROW = 500
"""A generator that needs more draws than this for one new row has too small a space."""

SPLIT_BUCKETS = {"test": (0,), "val": (1,), "train": tuple(range(2, 10))}


class PrepareJob(Frozen):
    """Write the rows of one task folder into `target`, a file a split."""

    folder: str
    target: str
    sizes: dict[str, int] | None = None
    """Rows of train, val and test of a procedural task; None: data.py decides what there is."""
    key: str = ""
    """The split key in hexadecimal digits, for procedural tasks."""


class Prepared(Frozen):
    event: Literal["prepared"] = "prepared"
    files: tuple[str, ...]


class PrepareFailed(Frozen):
    event: Literal["failed"] = "failed"
    error: str
    usage: bool = False
    """Rows could not be had: the caller can do something about it."""


class Wanted(Frozen):
    """Rows of a split of a data set, or one file of it."""

    event: Literal["wanted"] = "wanted"
    dataset: str
    config: str | None = None
    split: str | None = None
    file: str | None = None


class Given(Frozen):
    """The answer to Wanted."""

    path: str | None
    error: str = ""


Message = Annotated[Prepared | PrepareFailed | Wanted, Field(discriminator="event")]
MESSAGE: TypeAdapter[Prepared | PrepareFailed | Wanted] = TypeAdapter(Message)


class PipedSource:
    """The DataSource that data.py gets: it asks the harness over the pipe."""

    def __init__(self, asked: Callable[[Wanted], Given]) -> None:
        self._asked = asked

    def rows(self, dataset: str, config: str | None, split: str) -> Iterator[dict[str, Any]]:
        """The rows of a split, from the hub or a local folder; UsageError if they cannot be had."""
        return read_jsonl(self._path(Wanted(dataset=dataset, config=config, split=split)))

    def file(self, dataset: str, name: str) -> Path:
        """A local copy of one file of a data set's repository; UsageError if it cannot be had."""
        return self._path(Wanted(dataset=dataset, file=name))

    def _path(self, wanted: Wanted) -> Path:
        given = self._asked(wanted)
        if given.path is None:
            raise UsageError(given.error)
        return Path(given.path)


def prepare(job: PrepareJob, source: PipedSource) -> Prepared:
    """Run the folder's code. PluginError names the folder and what went wrong."""
    folder, target = Path(job.folder), Path(job.target)
    if not (folder / "data.py").is_file():
        _run_download(folder, target)
        return _written(folder, target)
    module = load_module(folder / "data.py")
    with boundary(PluginError, f"{folder.name}/data.py"):
        if job.sizes is not None:
            _draw(module, job.sizes, bytes.fromhex(job.key), target)
        elif hasattr(module, "prepare"):
            module.prepare(target, source=source)
        elif hasattr(module, "download_train_data"):
            _download(module.download_train_data, target)
        else:
            raise PluginError(f"{folder.name}/data.py: has neither prepare nor download_train_data")
    return _written(folder, target)


def _written(folder: Path, target: Path) -> Prepared:
    files = tuple(sorted(path.name for path in target.glob("*.jsonl")))
    if not files:
        raise PluginError(f"{folder.name}/data.py: wrote no .jsonl file")
    return Prepared(files=files)


def load_module(path: Path) -> ModuleType:
    """The module at `path`, under a name that meets no other."""
    name = f"posttrain_task_{digest_bytes(str(path).encode())[:12]}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None or not path.is_file():
        raise PluginError(f"{path.parent.name}/{path.name}: no such file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    with boundary(PluginError, f"{path.parent.name}/{path.name}"):
        specification.loader.exec_module(module)
    return module


def _run_download(folder: Path, target: Path) -> None:
    """Run download_data.py of a smith folder in a copy of the folder, and take what lies in data/ then."""
    copy = target / "folder"
    shutil.copytree(folder, copy)
    os.chdir(copy)
    with boundary(PluginError, f"{folder.name}/download_data.py"):
        runpy.run_path(str(copy / "download_data.py"), run_name="__main__")
    for path in sorted((copy / "data").glob("*.jsonl")):
        path.replace(target / path.name)
    os.chdir(target)
    shutil.rmtree(copy)


def _download(download: Callable[..., Any], target: Path) -> None:
    """The ancestor's function: called with the folder, as a Path."""
    inspect.signature(download).bind(target)
    download(target)


def _draw(module: ModuleType, sizes: dict[str, int], key: bytes, target: Path) -> None:
    """Fill the splits of a procedural task from its stream, each from its own tenths of the space."""
    home = {tenth: split for split, tenths in SPLIT_BUCKETS.items() for tenth in tenths}
    rows: dict[str, list[dict[str, Any]]] = {split: [] for split in sizes}
    seen: set[str] = set()
    seed = int(digest_bytes(b"seed of a task's draw" + key)[:15], 16)
    budget = _DRAWS_PER_ROW * sum(sizes.values())
    for draws, (canonical, row) in enumerate(module.candidates(seed)):
        if all(len(rows[split]) == size for split, size in sizes.items()):
            break
        if draws > budget:
            raise PluginError("the space of rows is too small for the sizes of the splits")
        split = home[bucket(canonical, key)]
        if canonical not in seen and len(rows.get(split, ())) < sizes.get(split, 0):
            seen.add(canonical)
            rows[split].append(row)
    for split, drawn in rows.items():
        write_jsonl(target / f"{split}.jsonl", drawn)


def serve(line: bytes, asked: Callable[[Wanted], Given]) -> Prepared | PrepareFailed:
    """The answer to one job line."""
    try:
        with boundary(PluginError, "preparing data"):
            return prepare(PrepareJob.model_validate_json(line), PipedSource(asked))
    except PosttrainError as error:
        return PrepareFailed(error=str(error), usage=isinstance(error, UsageError))


def main() -> int:
    with claim_stdout() as pipe:

        def asked(wanted: Wanted) -> Given:
            send(pipe, wanted)
            reply = sys.stdin.buffer.readline()
            return Given.model_validate(json.loads(reply)) if reply else Given(path=None, error="no harness")

        send(pipe, serve(sys.stdin.buffer.readline(), asked))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
