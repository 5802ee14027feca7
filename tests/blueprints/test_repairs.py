"""The rule book: what each fault is answered with, and what a repair may not touch."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from posttrain.blueprints.blueprint import Blueprint
from posttrain.blueprints.detect import Evidence, Fault, Finding
from posttrain.blueprints.local import LocalMachine
from posttrain.blueprints.repair import (
    MakeFolder,
    MoveAside,
    RefusedRepair,
    Repair,
    RepairCase,
    Variation,
    WriteCopy,
    carry_out,
)
from posttrain.blueprints.rules import RuleBook
from posttrain.blueprints.status import Ending
from posttrain.blueprints.yaml_text import replace_scalars, scalars


class Lab:
    """A code folder and cases made in it."""

    def __init__(self, root: Path) -> None:
        self.code = root / "code"
        self.results = root / "results"
        self.bin = root / "bin"
        for folder in (self.code, self.results, self.bin):
            folder.mkdir()
        self.machine = LocalMachine(env={"PATH": str(self.bin)})

    def case(
        self,
        fault: Fault,
        line: str,
        *,
        text: str = "",
        command: str = "python x.py --conf a.yaml",
        earlier: tuple[Repair, ...] = (),
    ) -> RepairCase:
        blueprint = Blueprint(
            source=self.code.parent / "b.md",
            purpose="p",
            codebase=self.code,
            python=Path("/usr/bin/python3"),
            yaml=self.code / "a.yaml",
            command=command,
            results=self.results,
            max_time_s=60.0,
        )
        return RepairCase(
            blueprint=blueprint,
            variation=Variation(command=command, yaml=blueprint.yaml),
            finding=Finding(fault=fault, evidence=(Evidence(line=1, text=line),)),
            ending=Ending(cause="exit", exit_code=1, started_at=0.0, ended_at=1.0),
            yaml_text=text,
            log_tail=line,
            earlier=earlier,
            number=1,
        )

    def propose(self, fault: Fault, line: str, **more: object) -> Repair | None:
        return RuleBook(self.machine).propose(self.case(fault, line, **more))  # type: ignore[arg-type]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def changed(repair: Repair | None) -> dict[str, object]:
    assert repair is not None
    [action] = repair.actions
    assert isinstance(action, WriteCopy)
    assert action.path.name == "a.repair-1.yaml"
    assert action.path.name in repair.variation.command
    loaded: dict[str, object] = yaml.safe_load(action.text)
    return loaded


def test_out_of_memory_halves_micro_batches_and_keeps_the_effective_batch(lab: Lab) -> None:
    text = (
        "per_device_train_batch_size: 8  # rows\ngradient_accumulation_steps: 2\n"
        "lr: 1e-5\ngradient_checkpointing: false\n"
    )

    repair = lab.propose(Fault.OUT_OF_MEMORY, "CUDA out of memory", text=text)

    assert changed(repair) == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "lr": "1e-5",
        "gradient_checkpointing": True,
    }
    assert repair is not None
    assert "# rows" in repair.actions[0].text  # type: ignore[union-attr]


def test_out_of_memory_lowers_what_the_engine_reserves(lab: Lab) -> None:
    text = "rollout:\n  gpu_memory_utilization: 0.85\nactor:\n  ppo_micro_batch_size_per_gpu: 2\n"

    assert changed(lab.propose(Fault.OUT_OF_MEMORY, "OOM", text=text)) == {
        "rollout": {"gpu_memory_utilization": 0.68},
        "actor": {"ppo_micro_batch_size_per_gpu": 1},
    }


def test_out_of_memory_uses_options_of_the_command(lab: Lab) -> None:
    repair = lab.propose(Fault.OUT_OF_MEMORY, "OOM", command="python x.py --per_device_train_batch_size 8")

    assert repair is not None
    assert repair.variation.command == "python x.py --per_device_train_batch_size 4"


def test_out_of_memory_without_a_knob_is_beyond_the_rules(lab: Lab) -> None:
    assert lab.propose(Fault.OUT_OF_MEMORY, "OOM", text="batch_size: 1\nname: x\n") is None


def test_a_yaml_that_the_command_does_not_name_is_not_changed(lab: Lab) -> None:
    assert lab.propose(Fault.OUT_OF_MEMORY, "OOM", text="batch_size: 8\n", command="bash run.sh") is None


def test_a_taken_port_is_replaced_in_yaml_and_command(lab: Lab) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        repair = lab.propose(
            Fault.PORT_TAKEN,
            f"OSError: address already in use: port {port}",
            text=f"server_port: {port}\nsteps: {port}\n",
            command=f"python x.py --conf a.yaml --port {port}",
        )

    loaded = changed(repair)
    assert repair is not None
    assert loaded["steps"] == port
    assert loaded["server_port"] != port
    assert f"--port {loaded['server_port']}" in repair.variation.command


def test_torchs_own_port_is_moved_in_the_environment(lab: Lab) -> None:
    repair = lab.propose(Fault.PORT_TAKEN, "c10d: EADDRINUSE, port: 29500, useIpv6: false")

    assert repair is not None
    assert int(repair.variation.env["MASTER_PORT"]) > 29500


def test_a_stale_lock_is_moved_aside_and_a_held_one_is_left(lab: Lab) -> None:
    lock = lab.code / ".train.lock"
    lock.write_text("99999999")
    line = f"RuntimeError: lock file '{lock}' exists"

    repair = lab.propose(Fault.STALE_LOCK, line)
    assert repair is not None
    assert repair.actions == (MoveAside(path=lock, target=lab.code / ".train.lock.stale-1"),)

    with lock.open():
        assert lab.propose(Fault.STALE_LOCK, line) is None
    lock.write_text("1")
    assert lab.propose(Fault.STALE_LOCK, line) is None


def test_a_lock_outside_the_experiment_is_left(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "other.lock").write_text("")

    assert lab.propose(Fault.STALE_LOCK, f"lock file '{tmp_path}/other.lock' exists") is None


def test_a_missing_folder_is_made_inside_the_experiment_only(lab: Lab) -> None:
    inside = lab.propose(Fault.MISSING_FOLDER, "FileNotFoundError: No such file or directory: 'out/a.txt'")
    outside = lab.propose(
        Fault.MISSING_FOLDER, "FileNotFoundError: No such file or directory: '/etc/x/a.txt'"
    )

    assert inside is not None
    assert inside.actions == (MakeFolder(path=lab.code / "out"),)
    assert outside is None


def test_a_dead_network_goes_through_proxychains_where_it_is_installed(lab: Lab) -> None:
    line = "Temporary failure in name resolution"
    without = lab.propose(Fault.NETWORK, line)
    (lab.bin / "proxychains4").write_text("#!/bin/sh\n")
    (lab.bin / "proxychains4").chmod(0o755)

    repair = lab.propose(Fault.NETWORK, line)

    assert without is not None
    assert without.by == "again"
    assert repair is not None
    assert repair.variation.prefix == ("proxychains4", "-q")


def test_nan_lowers_the_learning_rate_wherever_it_stands(lab: Lab) -> None:
    text = "optim:\n  lr: 1e-4\nmodel: x\n"

    assert changed(lab.propose(Fault.NAN, "loss nan", text=text)) == {"optim": {"lr": 3e-5}, "model": "x"}
    option = lab.propose(Fault.NAN, "loss nan", command="python x.py --learning_rate=2e-4")
    assert option is not None
    assert option.variation.command == "python x.py --learning_rate=6e-05"


@pytest.mark.parametrize("fault", [Fault.STUCK, Fault.LOST, Fault.NETWORK])
def test_starting_again_is_tried_once(fault: Fault, lab: Lab) -> None:
    first = lab.propose(fault, "x")

    assert first is not None
    assert first.by == "again"
    assert lab.propose(fault, "x", earlier=(first,)) is None


@pytest.mark.parametrize("fault", [Fault.DISK_FULL, Fault.TRACEBACK, Fault.UNKNOWN])
def test_some_faults_are_for_people(fault: Fault, lab: Lab) -> None:
    assert lab.propose(fault, "x", text="batch_size: 8\n") is None


def test_repairs_touch_nothing_outside_and_overwrite_nothing(lab: Lab) -> None:
    case = lab.case(Fault.UNKNOWN, "x")
    present = lab.code / "present.py"
    present.write_text("theirs")
    for action in (
        MakeFolder(path=Path("/etc/posttrain")),
        MakeFolder(path=lab.code / ".." / "x"),
        MoveAside(path=present, target=Path("/tmp/elsewhere")),
        WriteCopy(path=present, text="ours"),
    ):
        repair = Repair(by="x", why="x", changes=("x",), variation=case.variation, actions=(action,))
        with pytest.raises(RefusedRepair):
            carry_out(repair, blueprint=case.blueprint, machine=lab.machine)

    assert present.read_text() == "theirs"


def test_values_are_replaced_in_place() -> None:
    text = "a:\n  b: 1   # one\n  c: 'x'\nlist: [1, 2]\nd: false\n"

    assert scalars(text) == {"a.b": 1, "a.c": "x", "d": False}
    assert (
        replace_scalars(text, {"a.b": 2, "d": True})
        == "a:\n  b: 2   # one\n  c: 'x'\nlist: [1, 2]\nd: true\n"
    )
    assert scalars(replace_scalars(text, {"a.b": 1e-6}))["a.b"] == 1e-6
