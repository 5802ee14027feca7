"""One recipe run: train under the clock, hand in early and at the end, distrust a bad first grade."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from posttrain.training.budget import Budget, HandInCost, Progress
from posttrain.training.examples import Batch
from posttrain.training.sft import SftSettings, StepReport, TrainingDiverged


class Trainer(Protocol):
    """A model in training: `Sft`, or a scripted one in tests."""

    def step(self, batch: Batch, *, progress: float) -> StepReport:
        """One optimiser step; raises TrainingDiverged."""
        ...

    def save(self, folder: Path) -> Path:
        """A complete checkpoint at `folder`."""
        ...


class Server(Protocol):
    """The grading server as a recipe sees it."""

    def hand_in(self, folder: Path, *, note: str) -> int | None:
        """The submission's number once its copy is complete; None if it was not accepted."""
        ...

    def grade(self, submission_id: int) -> dict[str, Any] | None:
        """The grade, None while it is being made."""
        ...


class Desk:
    """Saves versions and hands them in; learns what that takes."""

    def __init__(
        self,
        *,
        server: Server,
        budget: Budget,
        cost: HandInCost,
        output: Path,
        log: Callable[[str], None],
        keep: bool = True,
    ) -> None:
        """Without `keep` a version is removed once the grader has its copy."""
        self.server = server
        self.budget = budget
        self.cost = cost
        self._output = output
        self._log = log
        self.keep = keep
        self._version = 1 + max((_number(path) for path in output.glob("v*")), default=0)
        self.accepted: list[int] = []

    def hand_in(self, trainer: Trainer, *, note: str) -> int | None:
        """The submission's number; None if it was not accepted."""
        began = self.budget.now()
        folder = trainer.save(self._output / f"v{self._version}")
        self._version += 1
        number = self.server.hand_in(folder, note=note)
        seconds = self.budget.now() - began
        if not self.keep:
            shutil.rmtree(folder, ignore_errors=True)
        if number is None:
            self._log(f"{folder.name} was not accepted")
            return None
        self.accepted.append(number)
        self.cost.measured_s = seconds
        self._log(f"handed in {folder.name} as submission {number}: {seconds:.1f} s, {note}")
        return number


class Training:
    """One model from the base to its last hand-in."""

    def __init__(
        self,
        trainer: Trainer,
        batches: Iterator[Batch],
        *,
        progress: Progress,
        desk: Desk,
        name: str,
        curve: Callable[[StepReport], None],
    ) -> None:
        """`name` begins the note of what is handed in."""
        self._trainer = trainer
        self._batches = batches
        self._progress = progress
        self._desk = desk
        self._name = name
        self._curve = curve
        self.early: int | None = None
        """The submission of the early hand-in."""

    def run(self, *, early: float | None, worth: Callable[[], bool]) -> int | None:
        """Steps until time or data are used up, then the last hand-in; its number.

        Hands in once before, after that share of the training. Whether it is `worth` going on is asked
        after every step; if not, or if the last is not accepted, there is no number. Raises
        TrainingDiverged.
        """
        progress = self._progress
        while not progress.finished():
            batch = next(self._batches)
            report = self._trainer.step(batch, progress=progress.share())
            self._curve(report)
            progress.add(len(batch))
            if early is not None and progress.share() >= early and not progress.finished():
                self.early = self._desk.hand_in(
                    self._trainer, note=f"{self._name}, after {report.step} steps"
                )
                early = None
                progress.pause()
            if not worth():
                return None
        return self._desk.hand_in(self._trainer, note=f"{self._name}, end")


@dataclass(frozen=True)
class SessionSettings:
    """When to hand in and when to begin again."""

    early: float = 0.35
    """Share of the training after which the first checkpoint is handed in."""
    restarts: int = 1
    """How often to begin again from the base when training broke the model."""
    caution: float = 0.25
    """The learning rate of a new beginning, as a share of the one before."""


class Session:
    """Owns the order of events; tensors, time and the server are given."""

    def __init__(
        self,
        *,
        start: Callable[[SftSettings], Trainer],
        batches: Iterator[Batch],
        examples: int,
        desk: Desk,
        settings: SessionSettings,
        log: Callable[[str], None],
        curve: Callable[[StepReport], None],
    ) -> None:
        self._start = start
        self._batches = batches
        self._examples = examples
        self._desk = desk
        self._settings = settings
        self._log = log
        self._curve = curve
        self._judged = False
        self._before = len(desk.accepted)

    def run(self, sft: SftSettings) -> list[int]:
        """Train and hand in; the numbers of what the desk accepted."""
        for attempt in range(self._settings.restarts + 1):
            if self._trusted(sft, may_restart=attempt < self._settings.restarts):
                break
            sft = replace(sft, learning_rate=sft.learning_rate * self._settings.caution)
            self._log(f"beginning again from the base with learning rate {sft.learning_rate:g}")
        return self._desk.accepted

    def _trusted(self, sft: SftSettings, *, may_restart: bool) -> bool:
        """One training; False if its model is not to be trusted."""
        desk = self._desk
        training = Training(
            self._start(sft),
            self._batches,
            progress=Progress(desk.budget, desk.cost, examples=self._examples),
            desk=desk,
            name=f"SFT, learning rate {sft.learning_rate:g}",
            curve=self._curve,
        )
        broken = False

        def worth() -> bool:
            nonlocal broken
            broken = may_restart and self._broken(training.early)
            return not broken

        try:
            training.run(early=self._settings.early if self._first() else None, worth=worth)
        except TrainingDiverged as error:
            self._log(f"training diverged: {error}")
            if not may_restart:
                raise
            return False
        return not broken

    def _first(self) -> bool:
        """Whether nothing of this session was accepted yet."""
        return len(self._desk.accepted) == self._before

    def _broken(self, early: int | None) -> bool:
        """Whether the early grade has come and says, beyond doubt, that training broke the model.

        Only a collapse counts. On the way from an instruct model's habits to a new skill a score may
        dip below the base for a while, and beginning again would throw away what was learnt.
        """
        if early is None or self._judged:
            return False
        grade = self._desk.server.grade(early)
        if grade is None:
            return False
        self._judged = True
        self._log(f"submission {early}: {grade.get('score')} ({grade.get('status')})")
        score, interval = grade.get("score"), grade.get("improvement_ci95")
        if score is None or interval is None:
            return False
        return bool(interval[1] < 0 and score < grade["baseline_score"] / 2)


def _number(path: Path) -> int:
    digits = path.name.removeprefix("v")
    return int(digits) if digits.isdecimal() else 0
