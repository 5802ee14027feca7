"""The harness's side of the scorer: one job, one process, one evaluation."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from posttrain.core.errors import GradingTimeout, InfrastructureError, PluginError, WorkerDied
from posttrain.core.evaluation import ScoringFailed, ScoringJob
from posttrain.core.scores import Evaluation
from posttrain.infra.processes import Child, Command, Limits, Spawner
from posttrain.infra.sandbox import View

_ANSWER: TypeAdapter[Evaluation | ScoringFailed] = TypeAdapter(Evaluation | ScoringFailed)
_MEMORY_BYTES = 8 << 30
_TAIL = 600


def score(
    job: ScoringJob, *, spawner: Spawner, log: Path, timeout_s: float, view: View | None = None
) -> Evaluation:
    """Score texts in a process of its own; what it says on standard error is appended to `log`.

    `view` is what that process sees: everything, unless one is given.

    PluginError when the evaluator raised, GradingTimeout when it outran `timeout_s` and was stopped,
    WorkerDied when it ended without an answer.
    """
    command = Command(
        argv=[sys.executable, "-P", "-m", "posttrain.evaluators.scorer"],
        cwd=Path("/"),
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"},
        stdin="pipe",
        stdout="pipe",
        stderr=log,
        limits=Limits(address_space_bytes=_MEMORY_BYTES),
        view=view or View.host(),
    )
    with spawner.spawn(command, name="scorer") as child, _limited(child, timeout_s) as expired:
        line = _ask(child, job)
        if expired.is_set():
            raise GradingTimeout(f"scoring took longer than {timeout_s:.0f} s and was stopped")
    if not line:
        raise WorkerDied(f"the scorer ended without an answer: {_tail(log) or 'it said nothing'}")
    try:
        answer = _ANSWER.validate_json(line)
    except ValidationError as error:
        raise WorkerDied(f"the scorer answered nonsense: {line[:200]!r}") from error
    if isinstance(answer, ScoringFailed):
        raise PluginError(answer.error)
    if [item.id for item in answer.items] != [item.id for item in job.items]:
        raise InfrastructureError("the scorer did not answer for exactly the items it was asked about")
    return answer


def _ask(child: Child, job: ScoringJob) -> bytes:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(job.model_dump_json().encode("utf-8") + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return b""
    return child.stdout.readline()


@contextmanager
def _limited(child: Child, timeout_s: float) -> Iterator[threading.Event]:
    """Stops the child after `timeout_s`, which ends every read of its pipe; the event says that it did."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        child.stop(grace_s=0.0)

    timer = threading.Timer(timeout_s, expire)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()


def _tail(log: Path) -> str:
    return log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip() if log.is_file() else ""
