"""How a sweep shares out its time, prunes, survives a kill; time, tensors and grades are scripted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs the extra 'sweep'")

from posttrain.training.budget import Budget, HandInCost, Progress
from posttrain.training.examples import Batch, Example
from posttrain.training.session import Desk, Training
from posttrain.training.sft import SftSettings, StepReport, TrainingDiverged
from posttrain.training.study import Knobs, Study
from posttrain.training.sweep import Sweep, SweepSettings

STEP_S, COPY_S = 1.0, 1.0


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self) -> None:
        self.now += 0.5


@dataclass
class ScriptedTrainer:
    """A step takes a second; the score to come depends on the learning rate."""

    clock: Clock
    settings: SftSettings
    steps: int = 0

    def step(self, batch: Batch, *, progress: float) -> StepReport:
        self.clock.now += STEP_S * len(batch) / 32
        self.steps += 1
        if self.settings.learning_rate > 9e-4:
            raise TrainingDiverged("as scripted")
        return StepReport(self.steps, 1.0, 1.0, self.settings.learning_rate, 10, 0)

    def save(self, folder: Path) -> Path:
        self.clock.now += COPY_S
        folder.mkdir(parents=True)
        # the server sees nothing but the folder
        (folder / "value").write_text(str(quality(self.settings.learning_rate)))
        return folder


def quality(learning_rate: float) -> float:
    """The best learning rate is 4e-4, twice the recipe's."""
    return 20.0 - 10.0 * abs(math.log2(learning_rate / 4e-4))


@dataclass
class ScriptedServer:
    clock: Clock
    grade_s: float = 5.0
    cap: int = 50
    graded: bool = True
    kill_at: int | None = None
    notes: list[str] = field(default_factory=list)
    values: list[tuple[float, float]] = field(default_factory=list)
    """When accepted, and what the grade will say."""

    def hand_in(self, folder: Path, *, note: str) -> int | None:
        self.clock.now += COPY_S
        if len(self.values) >= self.cap:
            return None
        self.notes.append(note)
        self.values.append((self.clock.now, float((folder / "value").read_text())))
        if len(self.values) == self.kill_at:
            raise Killed
        return len(self.values)

    def grade(self, submission_id: int) -> dict[str, Any] | None:
        accepted, value = self.values[submission_id - 1]
        if self.clock.now < accepted + self.grade_s:
            return None
        if not self.graded:
            return {"status": "error", "score": None, "improvement": None}
        told = {"status": "graded", "score": 50 + value, "improvement": value}
        return told | {"elapsed_seconds": self.grade_s}


@dataclass
class Scene:
    """A run of an agent that sweeps."""

    folder: Path
    budget_s: float = 1000.0
    clock: Clock = field(default_factory=Clock)
    log: list[str] = field(default_factory=list)
    trainers: list[ScriptedTrainer] = field(default_factory=list)
    last: tuple[SftSettings, int, float] | None = None

    def __post_init__(self) -> None:
        self.server = ScriptedServer(self.clock)

    def start(self, settings: SftSettings) -> ScriptedTrainer:
        self.trainers.append(ScriptedTrainer(self.clock, settings))
        return self.trainers[-1]

    def stream(self, size: int) -> Iterator[Batch]:
        return itertools.repeat((Example((1,), (2,)),) * size)

    def curve(self, report: StepReport) -> None:
        """Nothing to draw."""

    def train(self, settings: SftSettings, *, size: int, epochs: float, desk: Desk) -> list[int]:
        self.last = settings, size, epochs
        training = Training(
            self.start(settings),
            self.stream(size),
            progress=Progress(desk.budget, desk.cost, examples=10**6),
            desk=desk,
            name="last",
            curve=self.curve,
        )
        training.run(early=None, worth=lambda: True)
        return desk.accepted

    def sweep(self, **settings: Any) -> list[int]:
        """Start the agent, at first or again."""
        desk = Desk(
            server=self.server,
            budget=Budget(self.budget_s - self.clock.now, clock=self.clock),
            cost=HandInCost(checkpoint_bytes=80e6),
            output=self.folder / "output",
            log=self.log.append,
            keep=False,
        )
        given = SweepSettings(
            sft=SftSettings(learning_rate=2e-4),
            size=32,
            rows=10**6,
            step_s=STEP_S,
            total_s=self.budget_s,
            **{"most_trials": 6} | settings,
        )
        study = Study(self.folder / "sweep.jsonl", seed=0, defaults=Knobs())
        return Sweep(self, study, desk, settings=given, log=self.log.append, pause=self.clock.pause).run()

    def told(self, text: str) -> list[str]:
        return [line for line in self.log if text in line]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_it_begins_with_the_recipe_and_ends_with_better_knobs(scene: Scene) -> None:
    scene.sweep()
    assert scene.trainers[0].settings.learning_rate == 2e-4
    assert scene.last is not None
    best, _, _ = scene.last
    assert quality(best.learning_rate) > quality(2e-4)
    assert scene.server.notes[-1] == "last, end"


def test_the_last_training_gets_its_share_of_the_time(scene: Scene) -> None:
    scene.sweep(last_share=0.4)
    assert scene.last is not None
    _, size, _ = scene.last
    assert scene.trainers[-1].steps * STEP_S * size / 32 > 0.38 * scene.budget_s


@pytest.mark.parametrize("budget_s", [25.0, 60.0, 130.0, 400.0, 3000.0])
@pytest.mark.parametrize("grade_s", [1.0, 40.0])
def test_nothing_is_handed_in_late_whatever_the_budget(
    tmp_path: Path, budget_s: float, grade_s: float
) -> None:
    scene = Scene(tmp_path, budget_s=budget_s)
    scene.server.grade_s = grade_s
    assert scene.sweep()
    assert scene.server.values[-1][0] < budget_s


def test_without_time_to_compare_it_is_the_recipe(tmp_path: Path) -> None:
    scene = Scene(tmp_path, budget_s=40.0)
    scene.sweep()
    assert scene.last == (SftSettings(learning_rate=2e-4), 32, 3)
    assert len(scene.trainers) == 1


def test_a_trial_that_looks_worse_half_way_is_not_finished(scene: Scene) -> None:
    scene.sweep()
    pruned = scene.told("not worth finishing")
    assert pruned
    ended = [note for note in scene.server.notes if note.endswith("end")]
    half_way = [note for note in scene.server.notes if "after" in note]
    assert len(ended) < len(half_way) + 1


def test_the_number_of_trials_is_bounded(tmp_path: Path) -> None:
    scene = Scene(tmp_path, budget_s=100_000.0)
    scene.sweep(most_trials=3)
    assert len(scene.trainers) == 4


def test_trials_do_not_pile_up_before_a_slow_grader(tmp_path: Path) -> None:
    scene = Scene(tmp_path, budget_s=2000.0)
    scene.server.grade_s = 150.0
    scene.sweep(most_trials=16)
    slices = [float(line.split(", ")[1].split(" s")[0]) for line in scene.told(" s: learning rate")]
    assert all(seconds >= 300.0 for seconds in slices[4:])
    assert len(slices) > 4


def test_a_trial_that_diverges_or_is_not_graded_is_no_zero(scene: Scene) -> None:
    scene.server.graded = False
    scene.sweep()
    assert scene.told("not graded")
    assert scene.last is not None
    assert scene.last[0].learning_rate == 2e-4


def test_a_reached_cap_ends_the_trials(scene: Scene) -> None:
    scene.server.cap = 3
    assert scene.sweep() == [1, 2, 3]
    assert len(scene.trainers) == 3


def test_versions_of_trials_are_removed_and_the_last_one_stays(scene: Scene) -> None:
    scene.sweep()
    left = [path.name for path in (scene.folder / "output").iterdir()]
    assert left == [f"v{len(scene.server.values)}"]


@pytest.mark.parametrize("kill_at", [1, 2, 3, 6])
def test_a_killed_sweep_goes_on_with_what_it_had_learnt(tmp_path: Path, kill_at: int) -> None:
    scene = Scene(tmp_path)
    scene.server.kill_at = kill_at
    with pytest.raises(Killed):
        scene.sweep()
    made = len(scene.trainers)
    scene.clock.now += 30
    assert scene.sweep()
    assert scene.server.values[-1][0] < scene.budget_s
    first_again = scene.trainers[made].settings
    assert first_again not in [trainer.settings for trainer in scene.trainers[:made]]
    numbers = [line.split(",")[0] for line in scene.told(" s: learning rate")]
    assert len(numbers) == len(set(numbers))


def test_the_grade_of_a_trial_that_was_complete_counts_after_a_kill(scene: Scene) -> None:
    scene.server.kill_at, scene.server.grade_s = 3, 90.0
    with pytest.raises(Killed):
        scene.sweep()
    assert not scene.told("on validation")
    scene.sweep()
    assert scene.told("trial 0: +10.0 on validation")
    assert not scene.told("trial 1:")


def test_a_kill_after_the_trials_goes_straight_to_the_last_training(scene: Scene) -> None:
    scene.sweep()
    handed_in = len(scene.server.values)
    again = Scene(scene.folder, clock=Clock(700.0))
    again.server.values = list(scene.server.values)
    again.sweep()
    assert len(again.trainers) == 1
    assert len(again.server.values) == handed_in + 1
    assert again.last == scene.last


@pytest.mark.parametrize("tail", [b'{"op_code": 4, "wor', b"\xff\xfe\n", b"\n", b"[]\n"])
def test_a_torn_journal_is_mended(scene: Scene, tail: bytes) -> None:
    scene.sweep()
    journal = scene.folder / "sweep.jsonl"
    with journal.open("ab") as file:
        file.write(tail)
    journal.with_name("sweep.jsonl.lock").symlink_to("sweep.jsonl")
    study = Study(journal, seed=0, defaults=Knobs())
    assert study.best()[1] is not None


def test_a_share_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="LAST_SHARE"):
        SweepSettings(sft=SftSettings(), size=32, rows=1, step_s=1.0, total_s=1.0, last_share=40.0)
