"""The engine's process: `python -m posttrain.engines.worker transformers|scripted|vllm`.

It reads one request a line on standard input and writes replies on what was standard output when it
started (core/engine.py). Whatever libraries print goes to standard error. A request that fails is
answered with `failed` and the worker lives on; it ends when standard input closes.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterable
from typing import BinaryIO, NoReturn

from posttrain.core.engine import (
    REQUEST,
    Engine,
    Failed,
    Generate,
    Generated,
    Loaded,
    LoadSubmission,
    OpenBase,
    Opened,
    ProgressReply,
    Render,
    RenderReply,
    Reply,
    Request,
    Sleep,
    Slept,
)
from posttrain.core.errors import (
    DeviceBusy,
    InfrastructureError,
    PosttrainError,
    Rejected,
    Unloadable,
    UsageError,
    boundary,
)
from posttrain.infra.answering import claim_stdout, send

_PROGRESS_EVERY_S = 0.25


class Worker:
    """One engine behind a pair of pipes."""

    def __init__(self, engine: Engine, replies: BinaryIO) -> None:
        self._engine = engine
        self._replies = replies
        self._told = 0.0

    def serve(self, requests: Iterable[bytes]) -> None:
        """Answer every request with exactly one terminal reply."""
        for line in requests:
            if line.strip():
                self._reply(self._answer(line))

    def _answer(self, line: bytes) -> Reply:
        try:
            with boundary(InfrastructureError, "the engine"):
                return self._handle(REQUEST.validate_json(line))
        except PosttrainError as error:
            return failure(error)

    def _handle(self, request: Request) -> Reply:
        match request:
            case OpenBase():
                return Opened(facts=self._engine.open(request.base, request.numeric))
            case LoadSubmission():
                return Loaded(report=self._engine.load(request.folder))
            case Render():
                return RenderReply(prompts=tuple(self._engine.render(request.prompts, request.prompt)))
            case Generate():
                return self._generate(request)
            case Sleep():
                self._engine.sleep()
                return Slept()

    def _generate(self, request: Generate) -> Generated:
        begun = time.monotonic()
        outputs = self._engine.generate(
            request.prompts, prompt=request.prompt, generation=request.generation, progress=self._progress
        )
        seconds = time.monotonic() - begun
        warnings = tuple(self._engine.warnings)
        return Generated(outputs=tuple(outputs), generation_s=seconds, warnings=warnings)

    def _progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told >= _PROGRESS_EVERY_S or done == total:
            self._told = now
            self._reply(ProgressReply(done=done, total=total))

    def _reply(self, reply: Reply) -> None:
        send(self._replies, reply)


def failure(error: PosttrainError) -> Failed:
    """The reply that says whose fault it is."""
    match error:
        case Unloadable():
            return Failed(kind="unloadable", error=error.reason, hint=error.hint)
        case Rejected():
            return Failed(kind="rejected", error=error.reason, hint=error.hint)
        case DeviceBusy():
            return Failed(kind="busy", error=str(error), hint=error.hint)
        case _:
            return Failed(kind="error", error=str(error))


def build_engine(name: str) -> Engine:
    """The engine called `name`; importing it is most of a worker's start."""
    if name == "scripted":
        from posttrain.engines.scripted import ScriptedEngine

        return ScriptedEngine()
    if name == "transformers":
        return _with_quiet_collector()
    if name == "vllm":
        from posttrain.engines.vllm_engine import VllmEngine

        return VllmEngine()
    raise UsageError(f"no engine {name!r}. Known: scripted, transformers, vllm")


def _with_quiet_collector() -> Engine:
    """Import without the garbage collector, which finds nothing in half a million new objects, ten times."""
    gc.disable()
    from posttrain.engines.transformers_engine import TransformersEngine

    engine = TransformersEngine()
    gc.freeze()
    gc.enable()
    return engine


class _Unavailable:
    """Stands in for an engine that cannot be built: every request is answered with the reason."""

    def __init__(self, reason: PosttrainError) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise self._reason


def _engine_or_reason(name: str) -> Engine:
    try:
        with boundary(InfrastructureError, f"starting the engine {name}"):
            return build_engine(name)
    except PosttrainError as error:
        return _Unavailable(error)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m posttrain.engines.worker transformers|scripted|vllm\n")
        return 2
    replies = claim_stdout()
    try:
        Worker(_engine_or_reason(arguments[0]), replies).serve(sys.stdin.buffer)
    except BrokenPipeError:
        return 1  # nobody is left to answer to
    return 0


if __name__ == "__main__":
    # plain exit: nothing of a worker is worth the second that tearing torch down takes
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
