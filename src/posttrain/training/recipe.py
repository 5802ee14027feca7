"""The supervised recipe, whoever turns its knobs: base, rows, clock and server of one run, put together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

from posttrain.prompting import render_example
from posttrain.training.assignment import Assignment
from posttrain.training.budget import Budget, HandInCost
from posttrain.training.curve import Curve
from posttrain.training.examples import Batch, batches
from posttrain.training.models import ModelTrainer, batch_size_for, learning_rate_for, read_base
from posttrain.training.session import Desk, Session, SessionSettings
from posttrain.training.sft import SftSettings

STEPS = 40
"""With fewer steps than this, smaller batches teach more."""


class Recipe:
    """Supervised fine-tuning of one run's base on its visible rows with its pinned prompt."""

    def __init__(self, assignment: Assignment, *, log: Callable[[str], None]) -> None:
        """Reads the clock first, then the rows and the facts of the base; no weights yet."""
        self._assignment = assignment
        self._log = log
        self.budget = Budget(assignment.server.remaining_s())
        self.rows = assignment.rows()
        self.base = read_base(assignment.model)
        self.cost = HandInCost(self.base.checkpoint_bytes)
        self.curve = Curve(assignment.workspace / "code" / "curve.jsonl", log=log).add
        self._prepared: list[ModelTrainer] = []
        log(
            f"{len(self.rows)} rows, {self.base.parameters / 1e6:.0f}M parameters on {self.base.device}, "
            f"{self.budget.remaining():.0f} s left"
        )

    def settings(self) -> SftSettings:
        """What a step does, by the variables LEARNING_RATE and the machine."""
        asked = self._assignment.text("LEARNING_RATE", "auto")
        return SftSettings(
            learning_rate=learning_rate_for(self.base.parameters)
            if asked == "auto"
            else self._assignment.number("LEARNING_RATE", 0.0),
            max_tokens=16384 if self.base.device == "cuda" else 4096,
        )

    @property
    def epochs(self) -> float:
        return self._assignment.number("EPOCHS", 3)

    def stream(self, size: int) -> Iterator[Batch]:
        """Batches without end."""
        longest = self._assignment.count("MAX_LENGTH", 2048)
        return batches(
            self.rows,
            render_example,
            size=size,
            seed=self._assignment.seed,
            max_length=min(longest, self.base.max_length),
        )

    def fitting_batch(self, settings: SftSettings) -> int:
        """Rows a step, by the time that is left. Measures one step, on a model that is then started with."""
        first = ModelTrainer(self.base, settings)
        most = self._assignment.count("BATCH_SIZE", 32)
        row_s, tokens = first.row_cost(next(self.stream(most)))
        size = batch_size_for(
            self.budget.remaining() - self.cost.reserve(),
            seconds_per_row=row_s,
            tokens_per_row=tokens,
            most=most,
            steps=STEPS,
        )
        self._log(f"{row_s * 1000:.0f} ms and {tokens:.0f} tokens a row, {size} rows a step")
        self._prepared = [first]
        return size

    def step_s(self, size: int) -> float:
        """Seconds of a step of that size once the machine is warm, on the model that was measured with."""
        seconds, _ = self._prepared[0].row_cost(next(self.stream(size)))
        return seconds * size

    def start(self, settings: SftSettings) -> ModelTrainer:
        """A model at the beginning of its training; the one that was measured with, if it is there."""
        if self._prepared:
            return self._prepared.pop()
        gc.collect()  # a model before may wait in a cycle, and two do not fit everywhere
        return ModelTrainer(self.base, settings)

    def desk(self, *, keep: bool = True) -> Desk:
        """Where checkpoints are handed in."""
        return Desk(
            server=self._assignment.server,
            budget=self.budget,
            cost=self.cost,
            output=self._assignment.output,
            log=self._log,
            keep=keep,
        )

    def train(self, settings: SftSettings, *, size: int, epochs: float, desk: Desk) -> list[int]:
        """One training for all the time that is left; what the desk accepted."""
        session = Session(
            start=self.start,
            batches=self.stream(size),
            examples=int(epochs * len(self.rows)),
            desk=desk,
            settings=SessionSettings(early=self._assignment.number("EARLY", 0.35)),
            log=self._log,
            curve=self.curve,
        )
        return session.run(settings)

    def tell(self, accepted: list[int]) -> None:
        """Say what became of the submissions, as far as the time allows."""
        for number in accepted:
            grade = self._assignment.server.wait_for(number, until_s=3.0)
            if grade is not None:
                self._log(
                    f"submission {number}: {grade['status']}, score {grade.get('score')}, "
                    f"improvement {grade.get('improvement')}"
                )
