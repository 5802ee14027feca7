"""The real road of one grading: engine worker and scorer as processes, under one clock."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grading_kit import Allowance, boolean_exam, engine_workers, scripted_base, scripted_checkpoint, workers
from posttrain.checkpoints.snapshot import SnapshotLimits
from posttrain.core.errors import (
    GradingTimeout,
    InfrastructureError,
    PluginError,
    Rejected,
    Unloadable,
    WorkerDied,
)
from posttrain.core.grading import SubmitRequest, Verdict
from posttrain.core.paths import RunPaths
from posttrain.engines.scripted import Script, write_scripted
from posttrain.grading.exam import Exam, read_items
from posttrain.grading.exports import Exports
from posttrain.grading.grader import Grader
from posttrain.grading.ledger import Ledger, verify
from posttrain.grading.verdicts import Terms
from posttrain.grading.workers import Assessor
from posttrain.infra.processes import Spawner

ITEMS = 40
Ask = Callable[..., Assessor]


@pytest.fixture(scope="module")
def kill_mode():
    with Spawner() as spawner:
        return spawner.kill_mode


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted_base(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture
def exam(base: Path) -> Exam:
    return boolean_exam(base, items=ITEMS)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


@pytest.fixture
def make(exam: Exam, paths: RunPaths, kill_mode) -> Ask:
    def build(**changes: object) -> Assessor:
        options = {"paths": paths, "timeout_s": 60.0, "kill_mode": kill_mode} | changes
        return Assessor(options.pop("exam", exam), **options)

    return build


def test_a_checkpoint_is_asked_and_judged(make: Ask, base: Path, tmp_path: Path, paths: RunPaths) -> None:
    assessment = make().assess(scripted_checkpoint(base, tmp_path / "v1", accuracy=1.0), label="1")
    assert assessment.evaluation.score.value == 100.0
    assert assessment.load is not None
    assert not assessment.load.copy_of_base
    assert assessment.total_s > 0
    records = read_items(paths.grading_of(1))
    assert [record.result.id for record in records] == [f"i{k}" for k in range(ITEMS)]
    assert {output.text for record in records for output in record.outputs} == {"True", "False"}


def test_the_base_itself_has_no_load_report(make: Ask) -> None:
    assessment = make().assess(None, label="baseline-val")
    assert assessment.load is None
    assert 20.0 <= assessment.evaluation.score.value <= 80.0


def test_the_same_checkpoint_gets_the_same_answers_twice(make: Ask, base: Path, tmp_path: Path) -> None:
    folder = scripted_checkpoint(base, tmp_path / "v1", accuracy=0.6, seed=3)
    first, second = (make().assess(folder, label=label).evaluation for label in ("1", "2"))
    assert first == second


def test_a_copy_of_the_base_has_the_baseline_s_evaluation_without_generation(
    make: Ask, base: Path, tmp_path: Path
) -> None:
    baseline = make().assess(None, label="baseline-val").evaluation
    write_scripted(tmp_path / "copy", Script(accuracy=0.5), like=base)
    assessment = make(baseline=baseline).assess(tmp_path / "copy", label="1")
    assert assessment.load is not None
    assert assessment.load.copy_of_base
    assert assessment.evaluation == baseline
    assert assessment.generation_s == 0.0


@pytest.mark.parametrize(
    ("fault", "error", "at"), [("unloadable", Unloadable, "load"), ("rejected", Rejected, "generate")]
)
def test_faults_of_the_checkpoint_are_its_own_and_not_retried(
    make: Ask, base: Path, tmp_path: Path, fault: str, error: type[Exception], at: str
) -> None:
    heard: list[str] = []
    with pytest.raises(error):
        make().assess(
            scripted_checkpoint(base, tmp_path / "v1", fault=fault, at=at), label="1", on_fault=heard.append
        )
    assert heard == []
    assert workers("posttrain.evaluators.scorer") == [], "it had been started beside the loading"


def test_a_worker_that_dies_is_tried_once_more_and_then_is_our_fault(
    make: Ask, base: Path, tmp_path: Path
) -> None:
    heard: list[str] = []
    folder = scripted_checkpoint(base, tmp_path / "v1", fault="crash", at="generate")
    with pytest.raises(WorkerDied):
        make().assess(folder, label="1", on_fault=heard.append)
    assert len(heard) == 1


def test_a_grading_that_outruns_its_limit_is_killed(make: Ask, base: Path, tmp_path: Path) -> None:
    folder = scripted_checkpoint(base, tmp_path / "v1", fault="hang")
    begun = time.monotonic()
    with pytest.raises(GradingTimeout, match="longer than 2 s"):
        make(timeout_s=2.0).assess(folder, label="1")
    assert 4.0 <= time.monotonic() - begun < 12.0  # two attempts
    _no_worker_left()


def test_a_cancelled_grading_ends_at_once_and_none_begins_again(
    make: Ask, base: Path, tmp_path: Path
) -> None:
    assessor = make()
    folder = scripted_checkpoint(base, tmp_path / "v1", fault="hang")
    stopper = threading.Timer(1.0, assessor.cancel)
    stopper.start()
    begun = time.monotonic()
    with pytest.raises(InfrastructureError):
        assessor.assess(folder, label="1")
    assert time.monotonic() - begun < 5.0
    with pytest.raises(InfrastructureError, match="cancelled"):
        assessor.assess(folder, label="2")
    _no_worker_left()


def _no_worker_left() -> None:
    deadline = time.monotonic() + 5.0
    while engine_workers():
        assert time.monotonic() < deadline, "an engine worker is still alive"
        time.sleep(0.1)


def test_an_evaluator_that_cannot_work_is_the_task_s_fault(make: Ask, exam: Exam) -> None:
    broken = exam.task.model_copy(update={"evaluator_settings": {"labels": "nonsense", "no": 1}})
    with pytest.raises(PluginError):
        make(exam=replace(exam, task=broken)).assess(None, label="1")


def test_a_run_is_graded_from_folder_to_ledger_over_the_real_road(
    make: Ask, base: Path, paths: RunPaths
) -> None:
    baseline = make().assess(None, label="baseline-val").evaluation
    output = paths.workspace.output
    output.mkdir(parents=True)
    good = scripted_checkpoint(base, output / "v1", accuracy=1.0)
    scripted_checkpoint(base, output / "v2", weights=2, fault="unloadable")
    write_scripted(output / "v3", Script(accuracy=0.5), like=base)
    (good / "optimizer.pt").write_bytes(b"x")
    budget = Allowance()
    with (
        Ledger(paths.ledger, torn=paths.torn) as ledger,
        Grader(
            paths=paths,
            ledger=ledger,
            assessor=make(baseline=baseline),
            terms=Terms(
                split="val", baseline=baseline, limits=SnapshotLimits.for_base(base), max_submissions=9
            ),
            budget=budget,
            exports=Exports(paths.workspace, timeout_s=budget.timeout_s),
        ) as grader,
    ):
        grader.open()
        for name in ("v1", "v2", "v3", "v1"):
            grader.submit(SubmitRequest(model_path=f"output/{name}"))
        assert grader.drain(60)
        grades = grader.grades
    assert [grade.status for grade in grades] == [
        Verdict.GRADED,
        Verdict.UNLOADABLE,
        Verdict.GRADED,
        Verdict.GRADED,
    ]
    assert grades[0].value == 100.0
    assert grades[2].flags == ("copy_of_base",)
    assert grades[2].improvement is not None
    assert grades[2].improvement.value == 0.0
    assert grades[3].same_as == 1
    assert verify(paths.ledger).count == 12
    assert json.loads((paths.grading_of(1) / "grade.json").read_text("utf-8"))["status"] == "graded"
    workspace = {path.name for path in paths.workspace.root.rglob("*") if path.is_file()}
    assert "items.jsonl" not in workspace
