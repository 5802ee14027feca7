"""One recipe run: train under the clock, hand in early and at the end, distrust a bad first grade."""

from __future__ import annotations

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
        budget: Budget,
        cost: HandInCost,
        server: Server,
        output: Path,
        settings: SessionSettings,
        log: Callable[[str], None],
        curve: Callable[[StepReport], None],
    ) -> None:
        self._start = start
        self._batches = batches
        self._examples = examples
        self._budget = budget
        self._cost = cost
        self._server = server
        self._output = output
        self._settings = settings
        self._log = log
        self._curve = curve
        self._version = 1 + max((_number(path) for path in output.glob("v*")), default=0)
        self._early: int | None = None
        self._judged = False

    def run(self, sft: SftSettings) -> list[int]:
        """Train and hand in; the numbers of what was accepted."""
        accepted: list[int] = []
        for attempt in range(self._settings.restarts + 1):
            trainer = self._start(sft)
            trusted = self._train(trainer, accepted, may_restart=attempt < self._settings.restarts)
            if trusted:
                self._hand_in(trainer, accepted, note=f"SFT, learning rate {sft.learning_rate:g}, end")
                break
            sft = replace(sft, learning_rate=sft.learning_rate * self._settings.caution)
            self._log(f"beginning again from the base with learning rate {sft.learning_rate:g}")
        return accepted

    def _train(self, trainer: Trainer, accepted: list[int], *, may_restart: bool) -> bool:
        """Steps until time or data are used up; False if this training is not to be trusted."""
        progress = Progress(self._budget, self._cost, examples=self._examples)
        while not progress.finished():
            batch = next(self._batches)
            try:
                report = trainer.step(batch, progress=progress.share())
            except TrainingDiverged as error:
                self._log(f"training diverged: {error}")
                if may_restart:
                    return False
                raise
            self._curve(report)
            progress.add(len(batch))
            if not accepted and progress.share() >= self._settings.early and not progress.finished():
                self._early = self._hand_in(trainer, accepted, note=f"SFT, after {report.step} steps")
                progress.pause()
            if may_restart and self._broken():
                return False
        self._log(f"trained for {progress.share():.0%} of the plan")
        return True

    def _hand_in(self, trainer: Trainer, accepted: list[int], *, note: str) -> int | None:
        began = self._budget.now()
        folder = trainer.save(self._output / f"v{self._version}")
        self._version += 1
        number = self._server.hand_in(folder, note=note)
        seconds = self._budget.now() - began
        if number is None:
            self._log(f"{folder.name} was not accepted")
            return None
        accepted.append(number)
        self._cost.measured_s = seconds
        self._log(f"handed in {folder.name} as submission {number}: {seconds:.1f} s, {note}")
        return number

    def _broken(self) -> bool:
        """Whether the early grade has come and says, beyond doubt, that training broke the model.

        Only a collapse counts. On the way from an instruct model's habits to a new skill a score may
        dip below the base for a while, and beginning again would throw away what was learnt.
        """
        if self._early is None or self._judged:
            return False
        grade = self._server.grade(self._early)
        if grade is None:
            return False
        self._judged = True
        self._log(f"submission {self._early}: {grade.get('score')} ({grade.get('status')})")
        score, interval = grade.get("score"), grade.get("improvement_ci95")
        if score is None or interval is None:
            return False
        return bool(interval[1] < 0 and score < grade["baseline_score"] / 2)


def _number(path: Path) -> int:
    digits = path.name.removeprefix("v")
    return int(digits) if digits.isdecimal() else 0
