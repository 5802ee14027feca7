"""The harness's side of comparing weights: one job, one process, one answer."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from posttrain.core.errors import GradingTimeout, InfrastructureError, Rejected, Unloadable, WorkerDied
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Provenance
from posttrain.infra.fetching import require
from posttrain.infra.processes import Child, Command, Spawner
from posttrain.infra.sandbox import View

_TAIL = 600
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C.UTF-8",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_NUM_THREADS": "1",
    # chunks come and go: memory that the C library gives back each time is zeroed by the kernel each time,
    # which took three quarters of all the processor's time
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


class TensorFindings(Frozen):
    """What reading every weight showed, beside distances."""

    not_finite: tuple[str, ...] = ()
    zeroed: tuple[str, ...] = ()
    """Tensors that are 0 throughout although the base's are not."""
    unchanged: tuple[str, ...] = ()
    zeroed_share: float = 0.0
    tensors: int = 0
    head_equals_embedding: bool | None = None
    """None where the folder does not hold both."""


class CompareJob(Frozen):
    """What to compare: folders."""

    folder: str
    base: str
    siblings: dict[str, str] = Field(default_factory=dict)
    """Folder by name."""
    threads: int = Field(default=2, ge=1)


class Compared(Frozen):
    event: Literal["compared"] = "compared"
    provenance: Provenance
    findings: TensorFindings
    repairs: tuple[str, ...] = ()


class CompareFailed(Frozen):
    event: Literal["failed"] = "failed"
    kind: Literal["rejected", "unloadable", "error"]
    error: str
    hint: str = ""


_ANSWER: TypeAdapter[Compared | CompareFailed] = TypeAdapter(
    Annotated[Compared | CompareFailed, Field(discriminator="event")]
)


def require_numpy(needed_for: str) -> None:
    """MissingExtra unless weights can be compared here."""
    require("train", "numpy", needed_for=needed_for)


def compare_folders(
    folder: Path,
    base: Path,
    *,
    spawner: Spawner,
    log: Path,
    siblings: Mapping[str, Path] | None = None,
    view: View | None = None,
    timeout_s: float = 3600.0,
) -> Compared:
    """Compare a checkpoint with its base and the base's siblings in a process of its own.

    Raises Rejected or Unloadable for a folder that is no fine-tune of the base, GradingTimeout after
    `timeout_s`, and WorkerDied or InfrastructureError when the lab is at fault.
    """
    job = CompareJob(
        folder=str(folder),
        base=str(base),
        siblings={name: str(path) for name, path in (siblings or {}).items()},
        threads=min(4, len(os.sched_getaffinity(0))),
    )
    command = Command(
        argv=[sys.executable, "-P", "-m", "posttrain.checkpoints.compare_worker"],
        cwd=Path("/"),
        env=_ENVIRONMENT,
        stdin="pipe",
        stdout="pipe",
        stderr=log,
        view=view or View.host(),
    )
    with spawner.spawn(command, name="compare") as child:
        timer = threading.Timer(timeout_s, child.stop, kwargs={"grace_s": 0.0})
        timer.daemon = True
        timer.start()
        line = _ask(child, job)
        in_time = timer.is_alive()
        timer.cancel()
    if not line and not in_time:
        raise GradingTimeout(f"comparing weights took longer than {timeout_s:.0f} s")
    return _read(line, log)


def _ask(child: Child, job: CompareJob) -> bytes:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(job.model_dump_json().encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return b""
    return child.stdout.readline()


def _read(line: bytes, log: Path) -> Compared:
    if not line:
        said = log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip() if log.is_file() else ""
        raise WorkerDied(f"comparing weights ended without an answer: {said or 'it said nothing'}")
    try:
        found = _ANSWER.validate_json(line)
    except ValidationError as error:
        raise WorkerDied(f"comparing weights was answered with nonsense: {line[:200]!r}") from error
    if isinstance(found, Compared):
        return found
    match found.kind:
        case "rejected":
            raise Rejected(found.error, hint=found.hint)
        case "unloadable":
            raise Unloadable(found.error, hint=found.hint)
        case "error":
            raise InfrastructureError(found.error)
