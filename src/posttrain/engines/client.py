"""The harness's side of an engine worker: start it, ask it, and turn its failures into our errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from pydantic import ValidationError

from posttrain.core.engine import (
    REPLY,
    BaseFacts,
    Failed,
    Generate,
    Generated,
    Loaded,
    LoadSubmission,
    NumericPlan,
    OpenBase,
    Opened,
    Progress,
    ProgressReply,
    Prompt,
    PromptSettings,
    Render,
    RenderedPrompt,
    RenderReply,
    Reply,
    Request,
    Sleep,
    Slept,
)
from posttrain.core.errors import DeviceBusy, InfrastructureError, Rejected, Unloadable, WorkerDied
from posttrain.core.grading import LoadReport
from posttrain.core.specs import GenerationSettings
from posttrain.infra.processes import Child, Command, Spawner
from posttrain.infra.sandbox import View

_TAIL = 600
_Answer = TypeVar("_Answer", Opened, Loaded, RenderReply, Generated, Slept)


def worker_environment(*, gpu: str | None) -> dict[str, str]:
    """The whole environment of a worker: no hub, no spinning threads, one GPU or none."""
    return {
        "PATH": os.defpath,
        "LC_ALL": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": gpu or "",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class EngineWorker:
    """One worker process, started by `open` and stopped when the block ends.

    Every method raises WorkerDied when the process ends before it has answered, so a caller that wants
    a limit in time stops the spawner (or `stop`s this) from another thread.
    """

    def __init__(
        self,
        spawner: Spawner,
        *,
        log: Path,
        gpu: str | None,
        environment: Mapping[str, str] | None = None,
        view: View | None = None,
    ) -> None:
        """What the worker says on standard error is appended to `log`. `environment` is laid over ours.

        `gpu` is the one it sees, None for none: said by every caller, since a worker without it takes any
        plan for a GPU as an error.
        """
        self._spawner = spawner
        self._log = log
        self._environment = worker_environment(gpu=gpu) | dict(environment or {})
        self._view = view or View.host()
        self._child: Child | None = None

    def open(self, base: Path, numeric: NumericPlan) -> BaseFacts:
        """Start the process and let it read the base model."""
        self._child = self._start(numeric.engine)
        return self._ask(OpenBase(base=str(base), numeric=numeric), Opened).facts

    def load(self, folder: Path | None) -> LoadReport:
        """Take a checkpoint's tensors, or the base's again; raises Unloadable or Rejected."""
        return self._ask(LoadSubmission(folder=None if folder is None else str(folder)), Loaded).report

    def render(self, prompts: Sequence[Prompt], *, prompt: PromptSettings) -> list[RenderedPrompt]:
        """The prompts as the base's tokenizer sees them."""
        return list(self._ask(Render(prompts=tuple(prompts), prompt=prompt), RenderReply).prompts)

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        prompt: PromptSettings,
        generation: GenerationSettings,
        progress: Progress | None = None,
    ) -> Generated:
        """Answers in the order of the prompts, with the seconds they took and warnings about them."""
        request = Generate(prompts=tuple(prompts), prompt=prompt, generation=generation)
        return self._ask(request, Generated, progress=progress)

    def sleep(self) -> None:
        """Give back the memory of weights and caches; the next `load` wakes the worker."""
        self._ask(Sleep(), Slept)

    def alive(self) -> bool:
        """Whether the process is there and can be asked."""
        return self._child is not None and self._child.poll() is None

    def stop(self) -> None:
        """End the process at once; whoever waits for an answer gets WorkerDied."""
        if self._child is not None:
            self._child.stop(grace_s=0.0)

    def close(self) -> None:
        """End the process and release its pipes."""
        if self._child is not None:
            self.stop()
            self._child.__exit__(None, None, None)
            self._child = None

    def _start(self, engine: str) -> Child:
        if self._child is not None:
            raise InfrastructureError("this worker is open already")
        command = Command(
            argv=[sys.executable, "-P", "-m", "posttrain.engines.worker", engine],
            cwd=Path("/"),
            env=self._environment,
            stdin="pipe",
            stdout="pipe",
            stderr=self._log,
            view=self._view,
        )
        return self._spawner.spawn(command, name=f"{engine} worker")

    def _ask(self, request: Request, expected: type[_Answer], *, progress: Progress | None = None) -> _Answer:
        child = self._running()
        self._send(child, request)
        while True:
            reply = self._receive(child)
            match reply:
                case ProgressReply():
                    if progress is not None:
                        progress(reply.done, reply.total)
                case Failed():
                    _raise(reply)
                case _ if isinstance(reply, expected):
                    return reply
                case _:
                    raise WorkerDied(f"the engine worker answered {reply.event!r} to {request.op!r}")

    def _running(self) -> Child:
        if self._child is None:
            raise InfrastructureError("the engine worker is not open")
        return self._child

    def _send(self, child: Child, request: Request) -> None:
        assert child.stdin is not None
        try:
            child.stdin.write(request.model_dump_json().encode("utf-8") + b"\n")
            child.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._died() from error

    def _receive(self, child: Child) -> Reply:
        assert child.stdout is not None
        try:
            line = child.stdout.readline()
        except ValueError as error:
            raise self._died() from error
        if not line.endswith(b"\n"):
            raise self._died()
        try:
            return REPLY.validate_json(line)
        except ValidationError as error:
            raise WorkerDied(f"the engine worker answered nonsense: {line[:200]!r}") from error

    def _died(self) -> WorkerDied:
        return WorkerDied(
            f"the engine worker ended without an answer: {_tail(self._log) or 'it said nothing'}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _raise(failed: Failed) -> NoReturn:
    match failed.kind:
        case "unloadable":
            raise Unloadable(failed.error, hint=failed.hint)
        case "rejected":
            raise Rejected(failed.error, hint=failed.hint)
        case "busy":
            raise DeviceBusy(failed.error)
        case "error":
            raise InfrastructureError(failed.error)


def _tail(log: Path) -> str:
    """The last words of a process that died."""
    try:
        return log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip()
    except OSError:
        return ""
