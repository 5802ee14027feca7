"""One engine worker for many gradings: kept, watched, replaced, and worth as much as a new one."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from grading_kit import boolean_exam, engine_workers, scripted_base, scripted_checkpoint
from posttrain.core.engine import NumericPlan
from posttrain.core.errors import GradingTimeout, InfrastructureError, Unloadable, WorkerDied
from posttrain.core.paths import RunPaths
from posttrain.engines.scripted import Script
from posttrain.grading import warm
from posttrain.grading.exam import Exam, read_items
from posttrain.grading.workers import Assessor
from posttrain.infra.processes import Spawner
from posttrain.testing.tiny import fine_tuned

OWN_LOADER = """
class Evaluator:
    def run_eval(self, model_path, workspace_path, **kwargs):
        return {"score": 100.0}
"""


@pytest.fixture(scope="module")
def kill_mode():
    with Spawner() as spawner:
        return spawner.kill_mode


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return scripted_base(tmp_path / "base")


@pytest.fixture
def exam(base: Path) -> Exam:
    return boolean_exam(base, items=4)


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "run" / "submissions"


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def make(
    exam: Exam, tmp_path: Path, shelf: Path, told: list[str], kill_mode
) -> Iterator[Callable[..., Assessor]]:
    made: list[Assessor] = []

    def build(**changes: object) -> Assessor:
        options = {
            "paths": RunPaths(tmp_path / "run"), "timeout_s": 60.0, "kill_mode": kill_mode, "shelf": shelf,
            "tell": told.append,
        } | changes  # fmt: skip
        made.append(Assessor(options.pop("exam", exam), **options))
        return made[-1]

    yield build
    for assessor in made:
        assessor.cancel()
    assert engine_workers() == []


def test_one_worker_grades_one_checkpoint_after_the_other(
    make: Callable[..., Assessor], base: Path, shelf: Path
) -> None:
    assessor = make()
    values, seen = [], set()
    for number, accuracy in enumerate((1.0, 0.0, 1.0), start=1):
        folder = scripted_checkpoint(base, shelf / str(number), weights=number, accuracy=accuracy)
        values.append(assessor.assess(folder, label=str(number)).evaluation.score.value)
        seen.update(engine_workers())
    assert values == [100.0, 0.0, 100.0]
    assert len(seen) == 1


def test_without_a_shelf_each_checkpoint_has_a_worker_of_its_own(
    make: Callable[..., Assessor], base: Path, tmp_path: Path
) -> None:
    make(shelf=None).assess(scripted_checkpoint(base, tmp_path / "v1", accuracy=1.0), label="1")
    assert engine_workers() == []


def test_a_worker_that_is_killed_between_gradings_is_replaced_and_that_is_told(
    make: Callable[..., Assessor], base: Path, shelf: Path, told: list[str]
) -> None:
    assessor = make()
    assessor.assess(scripted_checkpoint(base, shelf / "1", accuracy=1.0), label="1")
    [first] = engine_workers()
    os.kill(first, signal.SIGKILL)
    while psutil.pid_exists(first):
        time.sleep(0.01)
    faults: list[str] = []
    graded = assessor.assess(
        scripted_checkpoint(base, shelf / "2", accuracy=1.0), label="2", on_fault=faults.append
    )
    assert graded.evaluation.score.value == 100.0
    assert len(told) + len(faults) == 1
    assert engine_workers() != [first]


def test_a_worker_that_is_killed_while_it_grades_is_followed_by_one_that_grades(
    make: Callable[..., Assessor], base: Path, shelf: Path
) -> None:
    assessor = make()
    assessor.assess(scripted_checkpoint(base, shelf / "1", accuracy=1.0), label="1")
    [first] = engine_workers()
    slow = scripted_checkpoint(base, shelf / "2", accuracy=1.0, delay_s=1.5)
    killer = threading.Timer(0.7, os.kill, (first, signal.SIGKILL))
    killer.start()
    faults: list[str] = []
    graded = assessor.assess(slow, label="2", on_fault=faults.append)
    assert graded.evaluation.score.value == 100.0
    assert len(faults) == 1
    assert first not in engine_workers()


def test_a_fault_of_a_checkpoint_leaves_the_worker_for_the_next(
    make: Callable[..., Assessor], base: Path, shelf: Path, told: list[str]
) -> None:
    assessor = make()
    with pytest.raises(Unloadable):
        assessor.assess(scripted_checkpoint(base, shelf / "1", fault="unloadable"), label="1")
    [first] = engine_workers()
    assert (
        assessor.assess(
            scripted_checkpoint(base, shelf / "2", accuracy=1.0), label="2"
        ).evaluation.score.value
        == 100.0
    )
    assert engine_workers() == [first]
    assert told == []


@pytest.mark.parametrize("after", ["a fault", "ten checkpoints"])
def test_a_base_that_answers_otherwise_than_at_first_costs_the_worker_its_place(
    make: Callable[..., Assessor], base: Path, shelf: Path, told: list[str], after: str
) -> None:
    assessor = make()
    if after == "a fault":
        with pytest.raises(Unloadable):
            assessor.assess(scripted_checkpoint(base, shelf / "1", fault="unloadable"), label="1")
    else:
        for number in range(warm.CANARY_EVERY):
            assessor.assess(None, label=f"b{number}")
    [first] = engine_workers()
    (base / "scripted.json").write_text(Script(accuracy=1.0).model_dump_json(), "utf-8")
    assessor.assess(scripted_checkpoint(base, shelf / "2", accuracy=1.0), label="2")
    assert told == ["engine worker replaced: the base gives other answers than when the worker was new"]
    assert first not in engine_workers()


def test_time_over_ends_the_kept_worker_and_the_next_grading_has_a_new_one(
    make: Callable[..., Assessor], base: Path, shelf: Path
) -> None:
    assessor = make(timeout_s=4.0)
    assessor.assess(scripted_checkpoint(base, shelf / "1", accuracy=1.0), label="1")
    with pytest.raises(GradingTimeout):
        assessor.assess(scripted_checkpoint(base, shelf / "2", fault="hang"), label="2")
    assert engine_workers() == []
    assert (
        assessor.assess(
            scripted_checkpoint(base, shelf / "3", accuracy=1.0), label="3"
        ).evaluation.score.value
        == 100.0
    )


def test_a_crash_at_every_attempt_is_our_fault_and_the_next_checkpoint_is_graded(
    make: Callable[..., Assessor], base: Path, shelf: Path
) -> None:
    assessor = make()
    with pytest.raises(WorkerDied):
        assessor.assess(scripted_checkpoint(base, shelf / "1", fault="crash", at="generate"), label="1")
    assert (
        assessor.assess(
            scripted_checkpoint(base, shelf / "2", accuracy=1.0), label="2"
        ).evaluation.score.value
        == 100.0
    )


def test_after_a_cancel_no_worker_is_left_and_none_begins(
    make: Callable[..., Assessor], base: Path, shelf: Path
) -> None:
    assessor = make()
    assessor.assess(scripted_checkpoint(base, shelf / "1", accuracy=1.0), label="1")
    assessor.cancel()
    assert engine_workers() == []
    with pytest.raises(InfrastructureError, match="cancelled"):
        assessor.assess(shelf / "1", label="2")


def test_another_device_is_another_worker(
    make: Callable[..., Assessor], base: Path, shelf: Path, told: list[str]
) -> None:
    assessor = make()
    folder = scripted_checkpoint(base, shelf / "1", accuracy=1.0)
    assessor.assess(folder, label="1", gpu="0")
    assessor.assess(folder, label="2", gpu="1")
    assert told == ["engine worker replaced: it is on device 0, 1 is asked for"]


def test_what_a_kept_worker_says_is_found_in_the_folder_of_its_grading(
    make: Callable[..., Assessor], base: Path, shelf: Path, tmp_path: Path
) -> None:
    assessor = make()
    with pytest.raises(WorkerDied):
        assessor.assess(scripted_checkpoint(base, shelf / "1", fault="crash", at="generate"), label="1")
    assert (tmp_path / "run" / "grading" / "1" / "engine.log").exists()


def test_a_worker_that_idles_gives_its_memory_back_and_wakes_with_the_same_answers(
    make: Callable[..., Assessor], exam: Exam, base: Path, shelf: Path
) -> None:
    pytest.importorskip("torch")
    real = replace(
        exam,
        numeric=NumericPlan(engine="transformers", dtype="float32"),
        generation=exam.generation.model_copy(update={"max_new_tokens": 6}),
    )
    assessor = make(exam=real, idle_s=0.2)
    folder = fine_tuned(base, shelf / "1", scale=0.3, dtype="F32")
    first = assessor.assess(folder, label="1")
    [worker] = engine_workers()
    time.sleep(1.0)
    again = assessor.assess(folder, label="2")
    assert again.evaluation == first.evaluation
    assert engine_workers() == [worker]


@pytest.mark.slow
def test_twenty_checkpoints_in_any_order_get_from_one_worker_what_each_gets_from_a_new_one(
    make: Callable[..., Assessor], exam: Exam, base: Path, shelf: Path, tmp_path: Path, told: list[str]
) -> None:
    pytest.importorskip("torch")
    real = replace(
        exam,
        numeric=NumericPlan(engine="transformers", rows=3),
        generation=exam.generation.model_copy(update={"max_new_tokens": 12}),
    )
    for number in range(20):
        fine_tuned(base, shelf / str(number), seed=number, scale=0.3, dtype="BF16")
    paths = RunPaths(tmp_path / "run")

    def texts(assessor: Assessor, number: int, label: str) -> list[str]:
        assessor.assess(shelf / str(number), label=label)
        return [output.text for record in read_items(paths.grading_of(label)) for output in record.outputs]

    order = list(range(20))
    random.Random(7).shuffle(order)
    kept = make(exam=real)
    warm_texts = {number: texts(kept, number, f"warm-{number}") for number in order}
    assert len(engine_workers()) == 1
    fresh = {number: texts(make(exam=real, shelf=None), number, f"fresh-{number}") for number in range(20)}
    assert warm_texts == fresh
    assert len({str(each) for each in fresh.values()}) == 20
    assert told == []


def test_a_worker_that_cannot_sleep_makes_room_for_a_task_that_loads_the_model_itself(
    make: Callable[..., Assessor], exam: Exam, base: Path, shelf: Path, tmp_path: Path
) -> None:
    task = exam.task.model_copy(update={"evaluator": "own", "folder": tmp_path / "task"})
    task.folder.mkdir()
    (task.folder / "eval.py").write_text(OWN_LOADER)
    assessor = make(exam=replace(exam, task=task))
    for number in (1, 2):
        folder = scripted_checkpoint(base, shelf / str(number), fault="error", at="sleep")
        assert assessor.assess(folder, label=str(number)).evaluation.score.value == 100.0
        assert engine_workers() == []
