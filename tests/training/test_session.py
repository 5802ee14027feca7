"""When a recipe trains, hands in, stops and begins again; time, tensors and server are scripted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from posttrain.training.budget import Budget, HandInCost, Progress
from posttrain.training.examples import Example
from posttrain.training.models import batch_size_for, learning_rate_for
from posttrain.training.session import Desk, Session, SessionSettings
from posttrain.training.sft import SftSettings, StepReport, TrainingDiverged, learning_rate_factor


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedTrainer:
    """Each step and each save takes a known time."""

    clock: Clock
    settings: SftSettings
    step_s: float = 2.0
    save_s: float = 1.0
    diverges_at: int | None = None
    progress: list[float] = field(default_factory=list)

    def step(self, batch: Any, *, progress: float) -> StepReport:
        self.clock.now += self.step_s
        self.progress.append(progress)
        number = len(self.progress)
        if number == self.diverges_at:
            raise TrainingDiverged("as scripted")
        return StepReport(number, 1.0, 1.0, self.settings.learning_rate, 10, 0)

    def save(self, folder: Path) -> Path:
        self.clock.now += self.save_s
        folder.mkdir(parents=True)
        return folder


@dataclass
class ScriptedServer:
    """Accepts what it is given after some time; grades arrive later."""

    clock: Clock
    copy_s: float = 1.0
    grade_s: float = 20.0
    upper: float = 5.0
    score: float = 20.0
    refuses: bool = False
    handed_in: list[tuple[str, float]] = field(default_factory=list)

    def hand_in(self, folder: Path, *, note: str) -> int | None:
        self.clock.now += self.copy_s
        if self.refuses:
            return None
        self.handed_in.append((folder.name, self.clock.now))
        return len(self.handed_in)

    def grade(self, submission_id: int) -> dict[str, Any] | None:
        if self.clock.now < self.handed_in[submission_id - 1][1] + self.grade_s:
            return None
        return {
            "status": "graded",
            "score": self.score,
            "baseline_score": 60.0,
            "improvement_ci95": [-60.0, self.upper],
        }


@dataclass
class Scene:
    output: Path
    budget_s: float = 240.0
    examples: int = 10**6
    make: Callable[..., ScriptedTrainer] = ScriptedTrainer
    clock: Clock = field(default_factory=Clock)
    trainers: list[ScriptedTrainer] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = ScriptedServer(self.clock)

    def start(self, settings: SftSettings) -> ScriptedTrainer:
        self.trainers.append(self.make(self.clock, settings))
        return self.trainers[-1]

    def run(self, **settings: Any) -> list[int]:
        session = Session(
            start=self.start,
            batches=itertools.repeat((Example((1,), (2,)),) * 4),
            examples=self.examples,
            desk=Desk(
                server=self.server,
                budget=Budget(self.budget_s, clock=self.clock),
                cost=HandInCost(checkpoint_bytes=270e6),
                output=self.output,
                log=self.log.append,
            ),
            settings=SessionSettings(**settings),
            log=self.log.append,
            curve=lambda report: None,
        )
        return session.run(SftSettings(learning_rate=1e-3))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "output")


def test_it_hands_in_early_and_at_the_end(scene: Scene) -> None:
    assert scene.run() == [1, 2]
    (first, early), (second, late) = scene.server.handed_in
    assert (first, second) == ("v1", "v2")
    assert 70 <= early <= 95
    assert 225 <= late < 240


def test_it_trains_until_the_time_for_handing_in(scene: Scene) -> None:
    scene.run()
    progress = scene.trainers[0].progress
    assert progress == sorted(progress)
    assert progress[0] == 0.0
    assert progress[-1] > 0.97


@pytest.mark.parametrize("budget_s", [16.0, 30.0, 60.0, 600.0, 7200.0])
@pytest.mark.parametrize("step_s", [0.5, 7.0])
def test_nothing_is_handed_in_late_whatever_the_budget(
    tmp_path: Path, budget_s: float, step_s: float
) -> None:
    scene = Scene(
        tmp_path, budget_s=budget_s, make=lambda clock, sft: ScriptedTrainer(clock, sft, step_s=step_s)
    )
    assert scene.run()
    assert scene.server.handed_in[-1][1] < budget_s


def test_all_epochs_done_ends_it_before_the_time(scene: Scene) -> None:
    scene.examples = 80
    scene.run()
    assert len(scene.trainers[0].progress) == 20
    assert scene.clock.now < 50
    assert len(scene.server.handed_in) == 2


def test_a_first_grade_that_shows_a_collapse_begins_again_with_caution(scene: Scene) -> None:
    scene.server.upper = -0.1
    assert scene.run() == [1, 2]
    assert [trainer.settings.learning_rate for trainer in scene.trainers] == [1e-3, 2.5e-4]
    assert scene.server.handed_in[-1][1] < 240
    assert scene.trainers[1].progress[0] == 0.0


@pytest.mark.parametrize(("upper", "score"), [(0.0, 20.0), (-0.1, 31.0)])
def test_a_doubt_or_a_dip_changes_nothing(scene: Scene, upper: float, score: float) -> None:
    scene.server.upper, scene.server.score = upper, score
    scene.run()
    assert len(scene.trainers) == 1


def test_divergence_begins_again_once_and_then_is_an_error(tmp_path: Path) -> None:
    once = Scene(tmp_path / "once")
    once.make = lambda clock, sft: ScriptedTrainer(clock, sft, diverges_at=None if once.trainers else 5)
    assert once.run() == [1, 2]
    twice = Scene(tmp_path / "twice", make=lambda clock, sft: ScriptedTrainer(clock, sft, diverges_at=5))
    with pytest.raises(TrainingDiverged):
        twice.run()


def test_what_was_not_accepted_is_not_counted_and_tried_again_at_the_end(scene: Scene) -> None:
    scene.server.refuses = True
    assert scene.run() == []
    assert sum("not accepted" in line for line in scene.log) == 2


def test_versions_go_on_after_those_that_are_there(scene: Scene) -> None:
    (scene.output / "v7").mkdir(parents=True)
    (scene.output / "vx").mkdir()
    scene.run()
    assert [name for name, _ in scene.server.handed_in] == ["v8", "v9"]


def test_progress_is_the_further_of_time_and_epochs() -> None:
    clock = Clock()
    progress = Progress(Budget(100, clock=clock), HandInCost(0.0), examples=100)
    progress.add(50)
    assert progress.share() == 0.5
    clock.now = 80
    assert progress.share() == pytest.approx(80 / 94)


@pytest.mark.parametrize(
    ("progress", "factor"), [(0.0, 0.05), (0.05, 0.5), (0.1, 1.0), (0.55, 0.55), (1.0, 0.1), (2.0, 0.1)]
)
def test_the_learning_rate_rises_and_falls(progress: float, factor: float) -> None:
    assert learning_rate_factor(progress, warmup=0.1, floor=0.1) == pytest.approx(factor)


@pytest.mark.parametrize(("parameters", "rate"), [(1e6, 2e-4), (135e6, 2e-4), (1.35e9, 2e-5), (70e9, 2e-6)])
def test_larger_models_learn_at_smaller_rates(parameters: float, rate: float) -> None:
    assert learning_rate_for(int(parameters)) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("seconds", "tokens", "size"),
    [(0.001, 200, 32), (0.15, 200, 32), (0.3, 200, 16), (1.0, 200, 4), (60.0, 200, 4), (60.0, 20, 32)],
)
def test_batches_shrink_where_rows_are_dear_and_long(seconds: float, tokens: float, size: int) -> None:
    assert batch_size_for(200, seconds_per_row=seconds, tokens_per_row=tokens, most=32, steps=40) == size
