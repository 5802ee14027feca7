"""Time as a recipe needs it: how far it has come, and when it must hand in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


class Budget:
    """Seconds until the deadline, asked of the server once and counted on from there."""

    def __init__(self, remaining_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deadline = clock() + remaining_s

    def now(self) -> float:
        return self._clock()

    def remaining(self) -> float:
        """Seconds left, negative when over."""
        return self._deadline - self._clock()

    def first(self, seconds: float) -> Budget:
        """The next so many seconds as a budget of their own, which ends no later than this one."""
        return Budget(min(seconds, self.remaining()), clock=self._clock)


@dataclass
class HandInCost:
    """What saving and handing in takes: a guess from the model's size until it was measured."""

    checkpoint_bytes: float
    measured_s: float | None = None

    def reserve(self) -> float:
        """Seconds to keep free at the end. What is accepted before the deadline is graded after it."""
        if self.measured_s is None:
            return 6.0 + self.checkpoint_bytes / 40e6
        return 3.0 + 1.5 * self.measured_s


class Progress:
    """How much of the training is done, by time or by epochs, whichever is further."""

    def __init__(self, budget: Budget, cost: HandInCost, *, examples: int) -> None:
        self._budget = budget
        self._cost = cost
        self._examples = examples
        self._started = budget.now()
        self._seen = 0
        self._slowest_step = 0.0
        self._last = budget.now()

    def add(self, examples: int) -> None:
        """Count a finished step."""
        now = self._budget.now()
        # one slow step is an accident (another process, a hand-in); a trend shows again and again
        self._slowest_step = max(0.8 * self._slowest_step, now - self._last)
        self._last = now
        self._seen += examples

    def pause(self) -> None:
        """Time from the last step until now was no training."""
        self._last = self._budget.now()

    def share(self) -> float:
        """Done so far, in [0, 1]."""
        elapsed = self._budget.now() - self._started
        left = self._budget.remaining() - self._cost.reserve()
        by_time = 1.0 if left <= 0 else elapsed / (elapsed + left)
        return min(1.0, max(by_time, self._seen / self._examples))

    def finished(self) -> bool:
        """Whether another step would run into the time that handing in needs, or all epochs are done."""
        left = self._budget.remaining() - self._cost.reserve()
        return left < self._slowest_step or self._seen >= self._examples
