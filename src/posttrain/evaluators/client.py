"""The harness's side of the scorer: one job, one process, one evaluation."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from posttrain.core.errors import GradingTimeout, InfrastructureError, PluginError, WorkerDied
from posttrain.core.evaluation import EngineGiven, EngineWanted, ScoringFailed, ScoringJob
from posttrain.core.frozen import Frozen
from posttrain.core.scores import Evaluation
from posttrain.evaluators.stock import Asked
from posttrain.infra.processes import Child, Command, Limits, Spawner
from posttrain.infra.sandbox import View

_ANSWER: TypeAdapter[Evaluation | ScoringFailed | EngineWanted] = TypeAdapter(
    Evaluation | ScoringFailed | EngineWanted
)
_MEMORY_BYTES = 8 << 30
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C.UTF-8",
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_TAIL = 600


class Scorer:
    """A scorer process that has been started and waits for its one job; it ends with the block.

    Starting takes some 0.2 s and nothing of the job: a caller may do it beside other work.
    """

    def __init__(
        self,
        spawner: Spawner,
        *,
        log: Path,
        view: View | None = None,
        gpu: str | None = None,
        limited: bool = True,
    ) -> None:
        """What the process says on standard error is appended to `log`; `view` is what it sees: everything,
        unless one is given. `gpu` is for an evaluator that loads the checkpoint, and so is `limited=False`:
        a whole model takes the memory that it takes.
        """
        self._log = log
        command = Command(
            argv=[sys.executable, "-P", "-m", "posttrain.evaluators.scorer"],
            cwd=Path("/"),
            env={**_ENVIRONMENT, "CUDA_VISIBLE_DEVICES": gpu or ""},
            stdin="pipe",
            stdout="pipe",
            stderr=log,
            limits=Limits(address_space_bytes=_MEMORY_BYTES if limited else None),
            view=view or View.host(),
        )
        self._child = spawner.spawn(command, name="scorer")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    def score(self, job: ScoringJob, *, timeout_s: float, asked: Asked | None = None) -> Evaluation:
        """The evaluation of the job; once. `asked` answers an evaluator that asks the checkpoint itself.

        PluginError when the evaluator raised, GradingTimeout when it outran `timeout_s` and was stopped,
        WorkerDied when the process ended without an answer.
        """
        with _limited(self._child, timeout_s) as expired:
            answer = _converse(self._child, job, asked)
            if expired.is_set():
                raise GradingTimeout(f"scoring took longer than {timeout_s:.0f} s and was stopped")
        if answer is None:
            said = _tail(self._log) or "it said nothing"
            raise WorkerDied(f"the scorer ended without an answer: {said}")
        if isinstance(answer, ScoringFailed):
            raise PluginError(answer.error)
        if [item.id for item in answer.items] != [item.id for item in job.items]:
            raise InfrastructureError("the scorer did not answer for exactly the items it was asked about")
        return answer


def score(
    job: ScoringJob,
    *,
    spawner: Spawner,
    log: Path,
    timeout_s: float,
    view: View | None = None,
    asked: Asked | None = None,
    gpu: str | None = None,
) -> Evaluation:
    """Score texts in a process of its own, started for them; see `Scorer`."""
    with Scorer(spawner, log=log, view=view, gpu=gpu, limited=job.model is None) as scorer:
        return scorer.score(job, timeout_s=timeout_s, asked=asked)


def _converse(child: Child, job: ScoringJob, asked: Asked | None) -> Evaluation | ScoringFailed | None:
    """The scorer's last word; what it asks for before that is answered. None if it died."""
    assert child.stdout is not None
    message: Frozen = job
    while _send(child, message) and (line := child.stdout.readline()):
        try:
            answer = _ANSWER.validate_json(line)
        except ValidationError as error:
            raise WorkerDied(f"the scorer answered nonsense: {line[:200]!r}") from error
        if not isinstance(answer, EngineWanted):
            return answer
        message = asked(answer) if asked else EngineGiven(error="there is no checkpoint to ask")
    return None


def _send(child: Child, message: Frozen) -> bool:
    """Whether the scorer could be told."""
    assert child.stdin is not None
    try:
        child.stdin.write(message.model_dump_json().encode("utf-8") + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return False
    return True


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
