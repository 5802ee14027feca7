"""Several batches at a time on one CPU: each lane is a forked process with a share of the threads.

Two lanes of one thread each write half as many tokens again as one batch on two threads: small models
spend much of a step in operations too short to be split, and Python threads would wait for each other
at each of some thousand operations. A fork shares the weights; it happens anew for each generation,
while the parent runs no threads of its own.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, NoReturn, TypeVar

import torch
from pydantic import TypeAdapter

from posttrain.core.errors import InfrastructureError
from posttrain.core.scores import Output
from posttrain.engines.batching import Answered, Asked

_ANSWER: TypeAdapter[tuple[int, Output]] = TypeAdapter(tuple[int, Output])
_T = TypeVar("_T")

Report = Callable[[Answered], None]
Work = Callable[[Sequence[Asked]], Iterator[Answered]]


def deal(requests: Sequence[_T], lanes: int) -> list[list[_T]]:
    """Requests dealt out in turn, so that lanes get equal shares of long and short ones."""
    hands = [list(requests[lane::lanes]) for lane in range(lanes)]
    return [hand for hand in hands if hand]


def run_lanes(requests: Sequence[Asked], work: Work, *, lanes: int, threads: int, report: Report) -> None:
    """Do `work` on all requests in up to `lanes` processes that share `threads` threads.

    With one lane the work is done here. With more the parent stays on one thread even for one request:
    a child cannot use a pool of threads that its parent has started. Raises InfrastructureError when a
    lane ends before it has answered all of its requests.
    """
    if lanes == 1:
        torch.set_num_threads(threads)
        for answered in work(requests):
            report(answered)
        return
    torch.set_num_threads(1)
    hands = deal(requests, lanes)
    running = [_fork(hand, work, threads=max(1, threads // len(hands))) for hand in hands]
    try:
        _collect({pipe: len(hand) for (_, pipe), hand in zip(running, hands, strict=True)}, report)
    finally:
        for process, pipe in running:
            pipe.close()
            _end(process)


def _fork(hand: Sequence[Asked], work: Work, *, threads: int) -> tuple[int, BinaryIO]:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        _lane(hand, work, threads=threads, pipe=writing)
    os.close(writing)
    return process, os.fdopen(reading, "rb")


def _lane(hand: Sequence[Asked], work: Work, *, threads: int, pipe: int) -> NoReturn:
    """The life of a lane: it leaves by `_exit` in every case, never into its parent's code."""
    code = 1
    try:
        torch.set_num_threads(threads)
        with os.fdopen(pipe, "wb", buffering=0) as replies:
            for answered in work(hand):
                _write(replies, answered)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def _write(replies: BinaryIO, answered: Answered) -> None:
    line = _ANSWER.dump_json((answered.index, answered.output)) + b"\n"
    while line:
        line = line[replies.write(line) :]


def _collect(expected: dict[BinaryIO, int], report: Report) -> None:
    """Pass on answers as they come, until every lane has given its number of them."""
    with selectors.DefaultSelector() as selector:
        for pipe in expected:
            selector.register(pipe, selectors.EVENT_READ, data=pipe)
        while selector.get_map():
            for key, _ in selector.select():
                lane: BinaryIO = key.data
                if not _pass_on(lane, expected, report):
                    selector.unregister(lane)


def _pass_on(pipe: BinaryIO, expected: dict[BinaryIO, int], report: Report) -> bool:
    """Report one answer; False once the lane is complete."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise InfrastructureError("a lane of the engine ended early; the engine's log has the reason")
    index, output = _ANSWER.validate_json(line)
    report(Answered(index, output))
    expected[pipe] -= 1
    return expected[pipe] > 0


def _end(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
