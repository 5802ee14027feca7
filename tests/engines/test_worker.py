"""Workers as processes: protocol, faults told apart, nothing but replies on their output."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.core.engine import REPLY, Failed, NumericPlan, OpenBase, Opened
from posttrain.core.errors import InfrastructureError, Rejected, Unloadable, WorkerDied
from posttrain.core.specs import GenerationSettings
from posttrain.engines.client import EngineWorker, worker_environment
from posttrain.engines.scripted import Script, write_scripted
from posttrain.infra.processes import Spawner
from posttrain.testing.tiny import fine_tuned

from .conftest import CHAT, QUESTIONS, ask

SCRIPTED = NumericPlan(engine="scripted")
REAL = NumericPlan(engine="transformers", dtype="float32", threads=2, lanes=2, rows=2)
SETTINGS = GenerationSettings(max_new_tokens=8)
BOOLEANS = ["not ( True ) is", "True and False or True is", "( False or False ) is", "12 + 30 ="]


@pytest.fixture
def worker(spawner: Spawner, tmp_path: Path) -> Iterator[EngineWorker]:
    with EngineWorker(spawner, log=tmp_path / "engine.log", gpu=None) as running:
        yield running


def scripted(tiny: Path, folder: Path, **script: object) -> Path:
    write_scripted(folder, Script.model_validate(script), like=tiny)
    return folder


def texts_of(worker: EngineWorker, questions: list[str]) -> list[str]:
    generated = worker.generate(ask(questions), prompt=CHAT, generation=SETTINGS)
    return [output.text for output in generated.outputs]


def test_a_real_worker_goes_the_whole_way(worker: EngineWorker, tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    facts = worker.open(tiny, REAL)
    assert facts.has_chat_template
    assert worker.load(tiny).copy_of_base
    assert worker.render(ask(["1"]), prompt=CHAT)[0].text.startswith("<|im_start|>user\n1")
    seen: list[tuple[int, int]] = []
    generated = worker.generate(
        ask(QUESTIONS),
        prompt=CHAT,
        generation=SETTINGS,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert len(generated.outputs) == len(QUESTIONS)
    assert generated.generation_s > 0
    assert seen[-1] == (len(QUESTIONS), len(QUESTIONS))
    tuned = fine_tuned(tiny, tmp_path / "tuned", scale=0.3, dtype="F32")
    assert worker.load(tuned).changed_share == pytest.approx(1.0, abs=0.01)
    assert texts_of(worker, QUESTIONS) != [output.text for output in generated.outputs]


def test_a_bad_submission_is_blamed_and_the_worker_lives_on(
    worker: EngineWorker, tiny: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    worker.open(tiny, REAL)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Unloadable) as unloadable:
        worker.load(empty)
    assert unloadable.value.hint
    (empty / "adapter_config.json").write_text("{}")
    with pytest.raises(Rejected, match="adapter"):
        worker.load(empty)
    assert worker.load(None).copy_of_base
    assert len(texts_of(worker, ["1"])) == 1


def test_a_base_that_cannot_be_opened_is_our_fault_not_a_submissions(
    worker: EngineWorker, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InfrastructureError, match="opening the base model"):
        worker.open(tmp_path, REAL)


def test_a_request_that_is_none_is_answered_not_fatal(tiny: Path) -> None:
    open_line = OpenBase(base=str(tiny), numeric=SCRIPTED).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-m", "posttrain.engines.worker", "scripted"],
        input=f'nonsense\n{{"op": "dance"}}\n\n{open_line}\n', env=worker_environment(gpu=None),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    replies = [REPLY.validate_json(line) for line in done.stdout.splitlines()]
    assert [type(reply) for reply in replies] == [Failed, Failed, Opened]


def test_an_unknown_engine_answers_every_request_with_the_reason() -> None:
    open_line = OpenBase(base="x", numeric=SCRIPTED).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-m", "posttrain.engines.worker", "abacus"],
        input=f"{open_line}\n", env=worker_environment(gpu=None), capture_output=True, text=True, check=True,
    )  # fmt: skip
    reply = REPLY.validate_json(done.stdout)
    assert isinstance(reply, Failed)
    assert "no engine 'abacus'" in reply.error


def test_scripted_answers_are_right_as_often_as_the_script_says(
    worker: EngineWorker, tiny: Path, tmp_path: Path
) -> None:
    worker.open(tiny, SCRIPTED)
    worker.load(scripted(tiny, tmp_path / "right", accuracy=1.0))
    assert texts_of(worker, BOOLEANS) == ["False", "True", "False", "42"]
    worker.load(scripted(tiny, tmp_path / "wrong", accuracy=0.0))
    assert texts_of(worker, BOOLEANS) == ["True", "False", "True", "43"]
    worker.load(scripted(tiny, tmp_path / "some", accuracy=0.7))
    sums = [f"{n} + {n} =" for n in range(400)]
    right = sum(text == str(2 * n) for n, text in enumerate(texts_of(worker, sums)))
    assert 240 < right < 320


def test_scripted_answers_can_be_listed(worker: EngineWorker, tiny: Path, tmp_path: Path) -> None:
    worker.open(tiny, SCRIPTED)
    worker.load(scripted(tiny, tmp_path / "listed", answers={"Who?": "Me"}, otherwise="no idea"))
    assert texts_of(worker, ["Who?", "Where?"]) == ["Me", "no idea"]


def test_a_scripted_copy_of_the_base_is_seen_as_one(worker: EngineWorker, tiny: Path, tmp_path: Path) -> None:
    worker.open(tiny, SCRIPTED)
    assert worker.load(tiny).copy_of_base
    assert not worker.load(fine_tuned(tiny, tmp_path / "tuned")).copy_of_base
    assert not worker.load(scripted(tiny, tmp_path / "other", accuracy=1.0)).copy_of_base


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        ("unloadable", Unloadable),
        ("rejected", Rejected),
        ("error", InfrastructureError),
        ("crash", WorkerDied),
    ],
)
@pytest.mark.parametrize("at", ["load", "generate"])
def test_scripted_faults_arrive_as_real_ones(
    worker: EngineWorker, tiny: Path, tmp_path: Path, fault: str, raised: type[Exception], at: str
) -> None:
    worker.open(tiny, SCRIPTED)
    folder = scripted(tiny, tmp_path / "broken", fault=fault, at=at)
    if at == "generate":
        worker.load(folder)
    with pytest.raises(raised):
        texts_of(worker, BOOLEANS) if at == "generate" else worker.load(folder)


def test_a_worker_that_hangs_can_be_stopped_from_outside(
    worker: EngineWorker, tiny: Path, tmp_path: Path
) -> None:
    worker.open(tiny, SCRIPTED)
    folder = scripted(tiny, tmp_path / "hangs", fault="hang")
    stopper = threading.Timer(0.3, worker.stop)
    stopper.start()
    begun = time.monotonic()
    with pytest.raises(WorkerDied):
        worker.load(folder)
    assert time.monotonic() - begun < 5


def test_a_wrong_script_is_named_by_field(worker: EngineWorker, tiny: Path, tmp_path: Path) -> None:
    worker.open(tiny, SCRIPTED)
    folder = scripted(tiny, tmp_path / "wrong")
    (folder / "scripted.json").write_text('{"accuracy": 2}')
    with pytest.raises(Unloadable, match=r"scripted\.json: accuracy"):
        worker.load(folder)


def test_nothing_can_be_asked_of_a_worker_that_is_not_open(worker: EngineWorker) -> None:
    with pytest.raises(InfrastructureError, match="not open"):
        worker.load(None)


@pytest.mark.parametrize("plan", [SCRIPTED, REAL], ids=["scripted", "transformers"])
def test_a_checkpoint_that_is_refused_is_not_answered_for_by_the_one_before(
    worker: EngineWorker, tiny: Path, tmp_path: Path, plan: NumericPlan
) -> None:
    if plan is REAL:
        pytest.importorskip("torch")
    worker.open(tiny, plan)
    worker.load(fine_tuned(tiny, tmp_path / "tuned", scale=0.3, dtype="F32"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unloadable):
        worker.load(tmp_path / "empty")
    with pytest.raises(InfrastructureError, match="no checkpoint is loaded"):
        texts_of(worker, ["1"])
