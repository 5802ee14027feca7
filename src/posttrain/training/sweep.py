"""A sweep over the recipe's knobs inside one budget: short trials first, then the best knobs for the rest.

Every trial is a training of its own from the base, with a schedule that fits its slice of the time. What
the grader says of its half-way checkpoint decides whether it is worth finishing; the grade of the last one
is its value. Grades arrive while the next trial trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from posttrain.training.budget import Progress
from posttrain.training.examples import Batch
from posttrain.training.session import Desk, Trainer, Training
from posttrain.training.sft import SftSettings, StepReport, TrainingDiverged
from posttrain.training.study import Knobs, Study

_SMALLEST_BATCH = 4
_MOST_WAITING = 2
"""Trials whose grades may be under way before half-way checkpoints are left out; the queue takes four."""


class Work(Protocol):
    """The recipe as a sweep uses it."""

    def start(self, settings: SftSettings) -> Trainer:
        """A model at the beginning of its training."""
        ...

    def stream(self, size: int) -> Iterator[Batch]:
        """Batches without end."""
        ...

    def curve(self, report: StepReport) -> None:
        """Keep a step."""
        ...

    def train(self, settings: SftSettings, *, size: int, epochs: float, desk: Desk) -> list[int]:
        """One training for all the time that is left; what the desk accepted."""
        ...


@dataclass(frozen=True)
class SweepSettings:
    """What the recipe would do, and how the time is shared out."""

    sft: SftSettings
    size: int
    """Rows a step."""
    rows: int
    step_s: float
    """Seconds of a step of that size."""
    total_s: float
    """The whole budget; of a resumed run, what was used before included."""
    last_share: float = 0.4
    """Of the whole budget: kept for the training with the best knobs."""
    most_trials: int = 16
    least_steps: int = 12
    """A trial with fewer tells nothing."""
    patience: float = 0.15
    """Share of what is left that may go into waiting for the grade of the last trial."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.last_share <= 1.0:
            raise ValueError(f"LAST_SHARE: {self.last_share:g} is no share of the budget, 0 to 1")
        if self.most_trials < 0 or self.least_steps < 1:
            raise ValueError("MOST_TRIALS must be at least 0, LEAST_STEPS at least 1")


class Sweep:
    """Owns the order of trials; tensors, time, server and memory are given."""

    def __init__(
        self,
        work: Work,
        study: Study,
        desk: Desk,
        *,
        settings: SweepSettings,
        log: Callable[[str], None],
        pause: Callable[[], None] = lambda: time.sleep(0.5),
    ) -> None:
        self._work = work
        self._study = study
        self._desk = desk
        self._settings = settings
        self._log = log
        self._pause = pause
        self._pending: dict[int, int] = {}
        """Submissions whose grade is the value of a trial, by trial."""
        self._grading_s = 0.0
        """The least that a grade has taken; what a queue adds is not the grader's pace."""
        self._refused = False

    def run(self) -> list[int]:
        """Trials as long as there is time for them, then the last training; what was accepted."""
        self._recover()
        while (seconds := self._slice()) is not None:
            self._try(seconds)
        self._wait()
        return self._train_best()

    def _recover(self) -> None:
        """Trials that an interruption cut count if they had handed in their last."""
        for trial in self._study.interrupted():
            self._log(f"trial {trial.number} was interrupted")
            if trial.last is None:
                self._study.fail(trial.number)
            else:
                self._pending[trial.number] = trial.last

    def _slice(self) -> float | None:
        """Seconds for the next trial; None when it is time for the last training."""
        given, desk = self._settings, self._desk
        # a trial brings two checkpoints: shorter ones would pile up before a slow grader
        least = max(given.least_steps * given.step_s + desk.cost.reserve(), 2 * self._grading_s)
        left = desk.budget.remaining() - given.last_share * given.total_s
        made = self._study.made
        fitting = min(given.most_trials - made, int(left / least))
        # a first one without a second would have nothing to be compared with
        if self._refused or fitting < (1 if made else 2):
            return None
        return left / fitting

    def _try(self, seconds: float) -> None:
        number, knobs = self._study.ask()
        sft, size = self._turned(knobs)
        self._log(f"trial {number}, {seconds:.0f} s: {knobs}")
        trial = Training(
            self._work.start(sft),
            self._work.stream(size),
            progress=Progress(
                self._desk.budget.first(seconds), self._desk.cost, examples=knobs.epochs * self._settings.rows
            ),
            desk=self._desk,
            name=f"sweep, trial {number}: {knobs}",
            curve=self._work.curve,
        )
        watch = _Watch(self._study, self._desk, number, log=self._log)
        # where grades are slow, a half-way one would come too late to save anything
        early = 0.5 if len(self._pending) < _MOST_WAITING else None

        def worth() -> bool:
            self._settle()
            return watch.worth(trial.early)

        try:
            last = trial.run(early=early, worth=worth)
        except TrainingDiverged as error:
            self._log(f"trial {number} diverged: {error}")
            self._study.fail(number)
            return
        if watch.hopeless:
            self._study.prune(number)
        elif last is None:
            self._refused = True  # the cap is reached, or the run is over
            self._study.fail(number)
        else:
            self._study.handed_in(number, last)
            self._pending[number] = last

    def _turned(self, knobs: Knobs) -> tuple[SftSettings, int]:
        """The settings and the batch that the knobs stand for."""
        recipe = self._settings
        sft = replace(
            recipe.sft,
            learning_rate=recipe.sft.learning_rate * knobs.rate,
            weight_decay=knobs.weight_decay,
        )
        return sft, max(min(_SMALLEST_BATCH, recipe.size), recipe.size >> knobs.halvings)

    def _settle(self) -> None:
        """Give finished trials the grades that have come."""
        for number, submission in list(self._pending.items()):
            grade = self._desk.server.grade(submission)
            if grade is None:
                continue
            del self._pending[number]
            took = float(grade.get("elapsed_seconds") or 0.0)
            self._grading_s = min(took, self._grading_s or took)
            value = grade.get("improvement")
            if value is None:
                self._study.fail(number)
            else:
                self._study.finish(number, value)
            told = "not graded" if value is None else f"{value:+.1f} on validation"
            self._log(f"trial {number}: {told}")

    def _wait(self) -> None:
        """For grades that are under way, a little."""
        remaining = self._desk.budget.remaining()
        until = remaining - self._settings.patience * remaining
        self._settle()
        while self._pending and self._desk.budget.remaining() > until:
            self._pause()
            self._settle()
        for number in self._pending:
            self._log(f"trial {number}: its grade comes too late to decide anything")
            self._study.fail(number)

    def _train_best(self) -> list[int]:
        if self._desk.budget.remaining() < self._desk.cost.reserve() + self._settings.step_s:
            self._log("no time for a last training")
            return self._desk.accepted
        knobs, value = self._study.best()
        sft, size = self._turned(knobs)
        known = (
            "the recipe's own" if value is None else f"the best of {self._study.made} trials, {value:+.1f}"
        )
        self._log(f"last training, {known}: {knobs}")
        self._desk.keep = True
        return self._work.train(sft, size=size, epochs=knobs.epochs, desk=self._desk)


class _Watch:
    """Asks for the grade of a trial's half-way checkpoint, once it is there."""

    def __init__(self, study: Study, desk: Desk, number: int, *, log: Callable[[str], None]) -> None:
        self._study = study
        self._desk = desk
        self._number = number
        self._log = log
        self._judged = False
        self.hopeless = False

    def worth(self, early: int | None) -> bool:
        """Whether the trial is worth finishing, as far as it is known."""
        if early is None or self._judged:
            return True
        grade = self._desk.server.grade(early)
        if grade is None:
            return True
        self._judged = True
        value = grade.get("improvement")
        if value is None:
            return True
        self.hopeless = self._study.worse_than_others(self._number, value)
        judged = ", not worth finishing" if self.hopeless else ""
        self._log(f"trial {self._number}, half-way: {value:+.1f} on validation{judged}")
        return not self.hopeless
