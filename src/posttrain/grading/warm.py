"""One engine worker for many gradings: kept between them, watched, put to sleep and replaced.

What makes a worker's second grading worth as much as its first: each load begins with no weights at all
and ends with checksums (checkpoints/tensors.py), and here the base is asked again, from time to time,
what it was asked when the worker was new.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from posttrain.core.engine import NumericPlan, Prompt, PromptSettings
from posttrain.core.errors import InfrastructureError, SubmissionFault
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.client import EngineWorker
from posttrain.infra.processes import KillMode, Spawner
from posttrain.infra.sandbox import View

CANARY_EVERY = 10
"""Checkpoints between two looks at the base."""
IDLE_S = 300.0
"""A worker that has had nothing to do for this long gives its memory back."""
_CANARY_PROMPTS = 5
_CANARY = GenerationSettings(max_new_tokens=8)


@dataclass(frozen=True)
class Seat:
    """Where a worker runs, and what it is for."""

    base: Path
    numeric: NumericPlan
    view: View
    log: Path
    kill_mode: KillMode
    prompts: tuple[Prompt, ...]
    """Some of what checkpoints are asked; the first few are the canary."""
    prompt: PromptSettings


@dataclass
class _Kept:
    """One worker process and what is known of it."""

    spawner: Spawner
    worker: EngineWorker
    gpu: str | None
    said: tuple[Output, ...] = ()
    """What the base answered while the worker was new."""
    since: int = 0
    """Checkpoints since the base was last looked at."""
    suspect: bool = False
    """Whether a checkpoint was found at fault meanwhile."""


class WarmEngine:
    """Lends an engine worker, the same again as long as it is true to its base.

    As a context manager it ends the worker when the block ends. `lend` and `sleep` are for one thread at
    a time, `close` and `kill` for any.
    """

    def __init__(
        self,
        seat: Seat,
        *,
        keep: bool,
        idle_s: float = IDLE_S,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`keep` False: each loan gets a new worker. `tell` hears when and why a worker is replaced."""
        self._seat, self._keep, self._idle_s, self._tell = seat, keep, idle_s, tell
        self._in_use = threading.Lock()
        self._lock = threading.Lock()
        self._kept: _Kept | None = None
        self._closed = False
        self._nap: threading.Timer | None = None

    @contextmanager
    def lend(
        self, *, gpu: str | None = None, stopped: threading.Event | None = None
    ) -> Iterator[EngineWorker]:
        """A worker that is awake and holds nobody's weights yet.

        A checkpoint's fault leaves it alive; anything else that is raised in the block ends it. Once
        `stopped` is set none is started; whoever sets it calls `kill` then.
        """
        with self._in_use:
            self._stay_awake()
            try:
                kept = self._ready(gpu, stopped or threading.Event())
                kept.since += 1
                yield kept.worker
            except SubmissionFault:
                self._after_fault()
                raise
            except BaseException:
                self.kill()
                raise
            finally:
                self._after_loan()

    def sleep(self) -> None:
        """Give memory back now, unless the worker is lent; it wakes with the next loan."""
        if self._in_use.acquire(blocking=False):
            try:
                self.make_room()
            finally:
                self._in_use.release()

    def make_room(self) -> None:
        """Give memory back, also during a loan: by sleep, or by the end of a worker that cannot."""
        kept = self._kept
        if kept is None:
            return
        try:
            kept.worker.sleep()
        except InfrastructureError as error:
            if self._kept is kept:
                self._tell(f"engine worker ended, since it cannot sleep: {error}")
            self.kill()

    def kill(self) -> None:
        """End the worker at once; whoever waits for its answer gets WorkerDied."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept.spawner.close(grace_s=0.0)
            kept.worker.close()

    def close(self) -> None:
        """End the worker and start none again."""
        with self._lock:
            self._closed = True
        self._stay_awake()
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- from one loan to the next

    def _ready(self, gpu: str | None, stopped: threading.Event) -> _Kept:
        kept = self._kept
        if kept is not None:
            why = self._unfit(kept, gpu)
            if why is None:
                return kept
            self._tell(f"engine worker replaced: {why}")
            self.kill()
        return self._start(gpu, stopped)

    def _unfit(self, kept: _Kept, gpu: str | None) -> str | None:
        """Why this worker cannot be lent again, if so."""
        if not kept.worker.alive():
            return "it ended by itself"
        if kept.gpu != gpu:
            return f"it is on device {kept.gpu}, {gpu} is asked for"
        if kept.since < CANARY_EVERY and not kept.suspect:
            return None
        try:
            kept.worker.load(None)
            said = self._canary(kept.worker)
        except (InfrastructureError, SubmissionFault) as error:
            return f"it cannot take the base again: {error}"
        kept.since, kept.suspect = 0, False
        return None if said == kept.said else "the base gives other answers than when the worker was new"

    def _start(self, gpu: str | None, stopped: threading.Event) -> _Kept:
        seat = self._seat
        spawner = Spawner(kill_mode=seat.kill_mode)
        worker = EngineWorker(spawner, log=seat.log, gpu=gpu, view=seat.view)
        kept = _Kept(spawner, worker, gpu)
        with self._lock:
            if self._closed or stopped.is_set():
                spawner.close(grace_s=0.0)
                raise InfrastructureError("gradings were cancelled")
            self._kept = kept
        worker.open(seat.base, seat.numeric)
        if self._keep:
            kept.said = self._canary(worker)
        return kept

    def _canary(self, worker: EngineWorker) -> tuple[Output, ...]:
        prompts: Sequence[Prompt] = self._seat.prompts[:_CANARY_PROMPTS]
        if not prompts:
            return ()
        return worker.generate(prompts, prompt=self._seat.prompt, generation=_CANARY).outputs

    def _after_fault(self) -> None:
        with self._lock:
            if self._kept is not None:
                self._kept.suspect = True

    def _after_loan(self) -> None:
        if not self._keep:
            self.kill()
            return
        with self._lock:
            if self._kept is None or self._closed:
                return
            self._nap = threading.Timer(self._idle_s, self.sleep)
            self._nap.daemon = True
            self._nap.start()

    def _stay_awake(self) -> None:
        with self._lock:
            nap, self._nap = self._nap, None
        if nap is not None:
            nap.cancel()
