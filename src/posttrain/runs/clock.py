"""The agent's budget: wall-clock seconds that survive a death of the harness."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from pydantic import ValidationError

from posttrain.core.frozen import Frozen
from posttrain.infra.files import write_json

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ClockState(Frozen):
    """clock.json: replaced every second while the agent runs."""

    boot_id: str
    used_s: float
    timeout_s: float
    started: float
    """Unix seconds of the first start of the budget."""
    deadline: float | None = None
    """Unix seconds; None once the agent's time is over."""
    exit_code: int | None = None
    """Of an agent that ended by itself."""


def boot_id() -> str:
    """The kernel's id of this boot; empty where there is none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


class Clock:
    """Counts used seconds on the monotonic clock, so that setting the system's time changes nothing.

    A resumed run goes on from the last written value plus one second (what may have passed since
    the last write); down time is free.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float,
        used_s: float = 0.0,
        first_start: float | None = None,
        over: bool = False,
        exit_code: int | None = None,
    ):
        self._path = path
        self._timeout_s = timeout_s
        self._used_before = used_s
        self._first_start = first_start
        self._over = over
        self._exit_code = exit_code
        self._started: float | None = None
        self._stopped_at: float | None = None
        self._tick = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def resumed(cls, path: Path, *, timeout_s: float, otherwise_s: float = 0.0) -> Clock:
        """The clock of an interrupted run; a fresh one if the budget never started.

        `otherwise_s` is what counts as used if the file is lost. It comes from the system's time and
        is no match for a file that is there.
        """
        state = read_clock(path)
        if state is None:
            return cls(path, timeout_s=timeout_s, used_s=min(timeout_s, otherwise_s))
        over = state.deadline is None
        used = state.used_s if over else min(timeout_s, state.used_s + 1.0)
        return cls(
            path,
            timeout_s=timeout_s,
            used_s=used,
            first_start=state.started,
            over=over,
            exit_code=state.exit_code,
        )

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    @property
    def started(self) -> bool:
        return self._started is not None

    @property
    def start_time(self) -> float:
        """Unix seconds such that start_time + timeout_s is the deadline (shifted by a resume)."""
        return self.deadline - self._timeout_s

    @property
    def deadline(self) -> float:
        """Unix seconds at which the budget ends, seen from now."""
        return time.time() + self.remaining()

    def used(self) -> float:
        """Seconds of the budget that are gone."""
        if self._started is None:
            return self._used_before
        now = self._stopped_at if self._stopped_at is not None else time.monotonic()
        return self._used_before + now - self._started

    def remaining(self) -> float:
        """Seconds left; never below 0. Before the start: what the budget will be."""
        return max(0.0, self._timeout_s - self.used())

    def expired(self) -> bool:
        return self.remaining() <= 0.0

    @property
    def over(self) -> bool:
        """Whether the agent's time has ended: it is used up, or the agent ended by itself."""
        return self._over or self.expired()

    @property
    def exit_code(self) -> int | None:
        """Of an agent that ended by itself."""
        return self._exit_code

    def start(self) -> None:
        """The budget starts to run now."""
        self._started = time.monotonic()
        self._first_start = self._first_start or time.time()
        self._write()
        self._thread = threading.Thread(target=self._write_every_second, name="clock", daemon=True)
        self._thread.start()

    def stop(self, *, exit_code: int | None = None) -> None:
        """The agent's time is over: it ended with `exit_code`, or used it up. Later calls change nothing."""
        if self._started is None or self._stopped_at is not None:
            return
        self._stopped_at = time.monotonic()
        self._over, self._exit_code = True, exit_code
        self._end_thread()
        self._write()

    def pause(self) -> None:
        """Stop counting without ending the agent's time: an interrupted run can go on from here."""
        if self._started is not None and self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._end_thread()
            self._write()

    def settle(self, used_s: float) -> None:
        """Bring the file in line with an end that the ledger knows and the file does not.

        It may have been impossible to write then, or the harness died in between.
        """
        state = read_clock(self._path)
        if state is None or state.deadline is not None or abs(state.used_s - used_s) > 1.0:
            self._end_thread()
            self._used_before, self._started, self._over = used_s, None, True
            self._write()

    def _end_thread(self) -> None:
        self._tick.set()
        if self._thread is not None:
            self._thread.join()

    def _write_every_second(self) -> None:
        while not self._tick.wait(1.0):
            self._write(durable=False)

    def _write(self, *, durable: bool = True) -> None:
        state = ClockState(
            boot_id=boot_id(),
            used_s=round(min(self.used(), self._timeout_s), 3),
            timeout_s=self._timeout_s,
            started=self._first_start or time.time(),
            deadline=None if self._over else self.deadline,
            exit_code=self._exit_code,
        )
        try:
            write_json(self._path, state, durable=durable)
        except OSError:
            self._overwrite(state)

    def _overwrite(self, state: ClockState) -> None:
        """The same bytes of the disk again: a full one must not give the agent time for free."""
        text = state.model_dump_json().encode()
        try:
            with self._path.open("r+b") as file:
                file.write(text.ljust(os.fstat(file.fileno()).st_size))
        except OSError:  # read-only: what was written last counts, and the run ends of other causes
            return


def read_clock(path: Path) -> ClockState | None:
    """The last state, or None if the budget never started or the file is not ours."""
    try:
        return ClockState.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
