"""The harness's side of `prepare_worker`: start it, fetch what it asks for, read what it wrote."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from posttrain.benchmarks.prepare_worker import (
    MESSAGE,
    Given,
    Prepared,
    PrepareFailed,
    PrepareJob,
    Wanted,
)
from posttrain.core.errors import PluginError, PosttrainError, UsageError
from posttrain.core.frozen import Frozen
from posttrain.core.specs import TaskSpec
from posttrain.infra.fetching import child_environment
from posttrain.infra.files import write_jsonl
from posttrain.infra.processes import Child, Command, Spawner

if TYPE_CHECKING:
    from posttrain.benchmarks.prepare import DataSource

_LOG = "data.log"
_ASKED = ".asked-"
_TAIL = 600


def run_data_py(
    spec: TaskSpec,
    *,
    target: Path,
    spawner: Spawner,
    source: DataSource | None,
    sizes: Mapping[str, int] | None = None,
    key: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run the task's data.py into the emptied folder `target`.

    PluginError with the end of its output if it fails; UsageError if rows it asks for cannot be had.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    log = target / _LOG
    job = PrepareJob(
        folder=str(spec.folder), target=str(target), sizes=dict(sizes) if sizes else None, key=key.hex()
    )
    command = Command(
        argv=[sys.executable, "-P", "-m", "posttrain.benchmarks.prepare_worker"],
        cwd=target,
        env=_environment(environment),
        stdin="pipe",
        stdout="pipe",
        stderr=log,
    )
    with spawner.spawn(command, name=f"prepare-{spec.folder.name}") as child:
        _write(child, job)
        outcome = _converse(child, spec, source, folder=target)
    if outcome is None:
        tail = log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip()
        raise PluginError(f"{spec.folder.name}/data.py: its process died: {tail or 'it said nothing'}")
    if isinstance(outcome, PrepareFailed):
        raise (UsageError if outcome.usage else PluginError)(outcome.error)
    log.unlink(missing_ok=True)
    for left in target.glob(f"{_ASKED}*"):
        left.unlink()


def _converse(
    child: Child, spec: TaskSpec, source: DataSource | None, *, folder: Path
) -> Prepared | PrepareFailed | None:
    """Answer what the worker asks for until it is done; None if it died."""
    assert child.stdout is not None
    for number, line in enumerate(child.stdout):
        try:
            message = MESSAGE.validate_json(line)
        except ValidationError as error:
            raise PluginError(f"{spec.folder.name}/data.py: its process wrote nonsense") from error
        if not isinstance(message, Wanted):
            return message
        _write(child, _give(message, spec, source, folder / f"{_ASKED}{number}"))
    return None


def _give(wanted: Wanted, spec: TaskSpec, source: DataSource | None, place: Path) -> Given:
    """Fetch what is asked for; why it cannot be had goes back, for data.py may know another place."""
    if source is None:
        return Given(path=None, error="a procedural task has no source of rows")
    try:
        if wanted.file is not None:
            return Given(path=str(source.file(wanted.dataset, wanted.file)))
        rows: Iterable[Any] = source.rows(wanted.dataset, wanted.config, wanted.split or "train")
        write_jsonl(place, rows, durable=False)
    except PosttrainError as error:
        return Given(path=None, error=f"--task {spec.data_name}: {error}")
    return Given(path=str(place))


def _write(child: Child, message: Frozen) -> None:
    assert child.stdin is not None
    child.stdin.write(message.model_dump_json().encode("utf-8") + b"\n")
    child.stdin.flush()


def _environment(host: Mapping[str, str] | None) -> dict[str, str]:
    if host is not None:
        return child_environment(host)
    return {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
