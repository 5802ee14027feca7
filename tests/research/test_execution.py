"""Scripts of the driver model, run for real in processes of their own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.core.paths import Workspace
from posttrain.infra.processes import Spawner
from posttrain.research.nodes import Execution
from posttrain.research.places import IterationPlaces, Places
from posttrain.research.post_training.answers import Program
from posttrain.research.post_training.execution import Runner
from posttrain.research.post_training.handing_in import Desk
from posttrain.research.post_training.scenario import PostTraining

SAVE = """\
import os
from pathlib import Path
header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
target = Path(os.environ["CHECKPOINT_DIR"]) / "model.safetensors"
target.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[PostTraining]:
    environ = {"PATH": os.environ["PATH"], "DATA_PATH": str(tmp_path), "OPENAI_API_BASE": "http://u:pw@h/v1"}
    with Spawner(kill_mode="best-effort") as spawner:
        yield PostTraining(
            Workspace(tmp_path),
            environ=environ,
            runner=Runner(spawner=spawner, python=Path(sys.executable), environ=environ, seed=0),
            desk=Desk(url="", workspace=tmp_path, remaining=lambda: 60.0, log=lambda text: None),
            most_chars=10_000,
            lang="en",
        )


@pytest.fixture
def places(tmp_path: Path) -> IterationPlaces:
    return Places(Workspace(tmp_path)).iteration(1)


def train(scenario: PostTraining, places: IterationPlaces, code: str, *, limit_s: float = 20.0) -> Execution:
    scenario.build(places, Program(code=code))
    return scenario.train(places, limit_s=limit_s)


def test_a_training_that_failed_leaves_nothing_large(scenario: PostTraining, places: IterationPlaces) -> None:
    execution = train(scenario, places, f"{SAVE}raise OSError(28, 'No space left on device')\n")
    assert execution.failure is not None
    assert execution.failure.fault == "crash"
    assert not places.output.exists()


def test_printed_losses_of_two_kinds_are_no_divergence(
    scenario: PostTraining, places: IterationPlaces
) -> None:
    told = "for loss in [0.2] * 10 + [5.0] * 10: print('loss', loss)\n"
    execution = train(scenario, places, told + SAVE)
    assert execution.failure is None
    assert execution.curve.points == 20


def test_a_pipe_in_place_of_the_curve_holds_nothing_up(
    scenario: PostTraining, places: IterationPlaces
) -> None:
    began = time.monotonic()
    execution = train(
        scenario, places, f"{SAVE}import time\nos.mkfifo(os.environ['CURVE_FILE'])\ntime.sleep(3)\n"
    )
    assert execution.failure is None
    assert time.monotonic() - began < 15


def test_a_script_sees_no_address_of_the_driver_model(
    scenario: PostTraining, places: IterationPlaces
) -> None:
    execution = train(scenario, places, "import os\nprint(sorted(os.environ.values()))\n")
    assert "pw@h" not in execution.tail


@pytest.mark.parametrize("mark", ["\ufeff", "# -*- coding: latin-1 -*-\n"])
def test_a_script_with_a_mark_of_its_encoding_runs(
    scenario: PostTraining, places: IterationPlaces, mark: str
) -> None:
    execution = train(scenario, places, f"{mark}print('中文')\n{SAVE}")
    assert execution.failure is None, execution.tail
    assert "中文" in execution.tail
