"""The memory of a sweep: which knobs were tried and what they gave. Optuna chooses and keeps, in a journal.

The journal lies in the workspace, so that a run that was interrupted goes on with what it had learnt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.core.errors import UsageError

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ImportError as error:
    raise UsageError("the agent sweep needs optuna: pip install 'posttrain[sweep]'") from error

_STUDY = "recipe"
_RANDOM_TRIALS = 4
"""Trials before the sampler begins to trust what it has seen."""
_WEIGHT_DECAY = (0.0, 0.01, 0.1)
_MOST_HALVINGS = 2
_MOST_EPOCHS = 6
_HALF_WAY = 1
_LAST = "last"


class Knobs(NamedTuple):
    """What is turned, relative to what the recipe would take."""

    rate: float = 1.0
    """Factor on the learning rate."""
    halvings: int = 0
    """How often the batch is halved."""
    weight_decay: float = 0.0
    epochs: int = 3
    """At most; time usually ends it before."""

    def __str__(self) -> str:
        return (
            f"learning rate x{self.rate:.3g}, batch / {2**self.halvings}, "
            f"weight decay {self.weight_decay:g}, {self.epochs} epochs"
        )


@dataclass(frozen=True)
class Interrupted:
    """A trial that was under way when the process ended before."""

    number: int
    last: int | None
    """The submission of its finished training, whose grade may have come since."""


class Study:
    """Trials by number. Larger values are better; they are improvements on validation, in points."""

    def __init__(self, journal: Path, *, seed: int, defaults: Knobs) -> None:
        """Opens the journal or begins it; the first trial of a new one has the `defaults`.

        What a kill left half written at its end is taken away.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        _mend(journal)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        self._study = optuna.create_study(
            study_name=_STUDY, storage=storage, direction="maximize", load_if_exists=True
        )
        made = len(self._study.trials)
        # a resumed sampler must not draw again what it drew before
        self._study.sampler = optuna.samplers.TPESampler(seed=seed + made, n_startup_trials=_RANDOM_TRIALS)
        self._study.pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
        self._running: dict[int, Any] = {}
        self._defaults = defaults
        if not made:
            self._study.enqueue_trial(defaults._asdict())

    @property
    def made(self) -> int:
        """Trials begun so far, in this process or before."""
        return sum(trial.state != TrialState.WAITING for trial in self._study.trials)

    def ask(self) -> tuple[int, Knobs]:
        """A new trial."""
        trial = self._study.ask()
        knobs = Knobs(
            rate=trial.suggest_float("rate", 0.2, 5.0, log=True),
            halvings=trial.suggest_int("halvings", 0, _MOST_HALVINGS),
            weight_decay=trial.suggest_categorical("weight_decay", _WEIGHT_DECAY),
            epochs=trial.suggest_int("epochs", 1, max(_MOST_EPOCHS, self._defaults.epochs)),
        )
        self._running[trial.number] = trial
        return trial.number, knobs

    def worse_than_others(self, number: int, half_way: float) -> bool:
        """Keep the half-way value of a trial; whether it is below the median of those before it."""
        trial = self._running[number]
        trial.report(half_way, _HALF_WAY)
        return bool(trial.should_prune())

    def handed_in(self, number: int, submission: int) -> None:
        """Remember whose grade will be the trial's value, so that a resume finds it."""
        self._running[number].set_user_attr(_LAST, submission)

    def finish(self, number: int, value: float) -> None:
        """The trial's final value."""
        self._study.tell(number, value)

    def prune(self, number: int) -> None:
        """The trial was ended because of its half-way value."""
        self._study.tell(number, state=TrialState.PRUNED)

    def fail(self, number: int) -> None:
        """The trial has no value; that is not a bad one."""
        self._study.tell(number, state=TrialState.FAIL)

    def interrupted(self) -> Sequence[Interrupted]:
        """Trials of an earlier process without an end."""
        return [
            Interrupted(trial.number, trial.user_attrs.get(_LAST))
            for trial in self._study.trials
            if trial.state == TrialState.RUNNING and trial.number not in self._running
        ]

    def best(self) -> tuple[Knobs, float | None]:
        """The knobs of the best finished trial and its value; the defaults if none has finished."""
        done = [trial for trial in self._study.trials if trial.state == TrialState.COMPLETE]
        if not done:
            return self._defaults, None
        best = max(done, key=lambda trial: trial.value)
        return Knobs(**best.params), float(best.value)


def _mend(journal: Path) -> None:
    """Keep the whole lines at the beginning, and take over a lock whose owner is gone."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if not journal.exists():
        return
    whole = []
    for line in journal.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n") or not _is_entry(line):
            break
        whole.append(line)
    journal.write_bytes(b"".join(whole))


def _is_entry(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
