"""The only place that knows file names of the executor's state and of an experiment's documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from posttrain.blueprints.attempt import AttemptPaths


@dataclass(frozen=True)
class StatePaths:
    """What the executor keeps, so that it can die and be started again.

    $POSTTRAIN_HOME/blueprints/<name>/
    ├── lock              held by the one executor
    ├── state.json        the plan, the session, every attempt
    ├── events.jsonl      what happened when; the timeline of result.md
    ├── blueprint.md      as it was when the experiment began
    ├── llm.jsonl         what a model was asked about repairs, and its answers
    ├── attempts/<n>/     attempt.py
    ├── service/          the same for a service
    ├── earlier/<n>/      state of experiments that this one replaced
    └── result.md …       documents, where the result folder cannot be written
    """

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def blueprint(self) -> Path:
        return self.root / "blueprint.md"

    @property
    def transcript(self) -> Path:
        return self.root / "llm.jsonl"

    @property
    def stop(self) -> Path:
        """Asks the executor, or the next one, to end the experiment."""
        return self.root / "stop.json"

    @property
    def earlier(self) -> Path:
        return self.root / "earlier"

    @property
    def documents(self) -> ResultPaths:
        return ResultPaths(self.root)

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.root / "attempts" / str(number))

    @property
    def service(self) -> AttemptPaths:
        return AttemptPaths(self.root / "service")


@dataclass(frozen=True)
class ResultPaths:
    """The documents of an experiment.

    <exp_result_dir>/
    ├── trial_and_error.md    every attempt, what went wrong, what was changed
    ├── result.md  result.json
    ├── curve.png  curve.csv  the figure and its numbers
    ├── logs/attempt-<n>.log
    ├── repairs/<n>/          changed files, as they were used
    ├── previous/<n>/         documents of an earlier run of the same blueprint
    ├── .blueprint.json       whose folder this is, from the beginning on
    └── finish.flag           last; nothing is written after it
    """

    root: Path

    @property
    def trial_and_error(self) -> Path:
        return self.root / "trial_and_error.md"

    @property
    def result(self) -> Path:
        return self.root / "result.md"

    @property
    def result_json(self) -> Path:
        return self.root / "result.json"

    @property
    def curve(self) -> Path:
        return self.root / "curve.png"

    @property
    def curve_csv(self) -> Path:
        return self.root / "curve.csv"

    @property
    def flag(self) -> Path:
        return self.root / "finish.flag"

    def log(self, number: int) -> Path:
        return self.root / "logs" / f"attempt-{number}.log"

    def repair(self, number: int) -> Path:
        return self.root / "repairs" / str(number)

    @property
    def owner(self) -> Path:
        return self.root / ".blueprint.json"

    @property
    def previous(self) -> Path:
        return self.root / "previous"

    @property
    def own(self) -> tuple[Path, ...]:
        """All that is ours, but for `previous`."""
        return (
            self.trial_and_error, self.result, self.result_json, self.curve, self.curve_csv,
            self.root / "logs", self.root / "repairs", self.flag,
        )  # fmt: skip
