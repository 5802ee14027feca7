"""What logs and validation files are read for: faults, progress, numbers, plateaus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.blueprints.detect import Detector, Fault
from posttrain.blueprints.local import LocalMachine
from posttrain.blueprints.logs import LogLine, LogReader
from posttrain.blueprints.metrics import MetricRow, MetricsReader, parse_row
from posttrain.blueprints.plateau import on_plateau
from posttrain.blueprints.progress import ProgressReader
from posttrain.blueprints.stamping import LineStamper


def detected(text: str) -> Detector:
    detector = Detector()
    for number, line in enumerate(text.splitlines(), start=1):
        detector(LogLine(number, None, line))
    return detector


FAULTS = {
    Fault.OUT_OF_MEMORY: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    Fault.DISK_FULL: "OSError: [Errno 28] No space left on device",
    Fault.PORT_TAKEN: "OSError: [Errno 98] Address already in use: ('0.0.0.0', 29500)",
    Fault.STALE_LOCK: "RuntimeError: lock file /lab/code/.train.lock exists, another process is running",
    Fault.MISSING_FOLDER: "FileNotFoundError: [Errno 2] No such file or directory: 'out/log.txt'",
    Fault.NETWORK: "Max retries exceeded with url: /api (Caused by NameResolutionError)",
    Fault.KILLED: "bash: line 1:  4711 Killed                  python train.py",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_with_its_line(fault: Fault) -> None:
    finding = detected(f"starting\nstep 1\n{FAULTS[fault]}").explanation(exit_code=1)

    assert finding.fault is fault
    assert (finding.line, finding.evidence[-1].text) == (3, FAULTS[fault])


def test_a_traceback_is_kept_to_its_exception() -> None:
    text = 'a\nTraceback (most recent call last):\n  File "x.py", line 1\n    boom()\nValueError: no\nafter'

    finding = detected(text).explanation(exit_code=1)

    assert finding.fault is Fault.TRACEBACK
    assert [line.line for line in finding.evidence] == [2, 3, 4, 5]


def test_an_error_that_was_survived_long_ago_explains_nothing() -> None:
    text = FAULTS[Fault.NETWORK] + "\nretrying\n" + "step\n" * 300

    assert detected(text).explanation(exit_code=1).fault is Fault.UNKNOWN
    assert detected(text).explanation(exit_code=137).fault is Fault.KILLED
    assert [finding.fault for finding in detected(text).findings] == [Fault.NETWORK]


@pytest.mark.parametrize(
    ("lines", "diverged"),
    [
        (["loss: nan"] * 3, True),
        (["{'loss': 'nan', 'step': 3}"] * 3, True),
        (["actor/pg_loss:inf"] * 3, True),
        (["loss: nan"] * 2, False),
        (["loss: nan", "loss: nan", "loss: 0.1", "loss: nan"], False),
        (["loss: 0.1", "{'grad_norm': 'nan', 'loss': 0.2}"] * 4, False),
        (["the loss is nothing to worry about"] * 9, False),
    ],
)
def test_nan_means_three_losses_in_a_row(lines: list[str], diverged: bool) -> None:
    assert (detected("\n".join(lines)).diverged is not None) is diverged


ROWS = {
    "{'loss': '0.5', 'grad_norm': '1e-3', 'epoch': '0.2'}": (0.2, {"loss": 0.5, "grad_norm": 1e-3}),
    '{"step": 7, "reward": -1.5, "name": "x", "ok": true}': (7.0, {"reward": -1.5}),
    "step:10 - actor/pg_loss:0.12 - critic/score/mean:0.5": (
        10.0,
        {"actor/pg_loss": 0.12, "critic/score/mean": 0.5},
    ),
    "[EVAL @ step 40] x mean_reward=0.12 std_reward=0.4 task_pass_rate@1=12.50% n_tasks=50": (
        40.0,
        {"mean_reward": 0.12, "std_reward": 0.4, "task_pass_rate@1": 0.125, "total_tasks": 50.0},
    ),
    "{'global_steps': 20, 'num_pass_n_tasks(pass@4)': 9, 'val/mean_reward': np.float64(0.3)}": (
        20.0,
        {"num_pass_n_tasks": 9.0, "mean_reward": 0.3},
    ),
    "│ mean_reward │ 0.5 │": (None, {"mean_reward": 0.5}),
}


@pytest.mark.parametrize("line", ROWS)
def test_numbers_are_read_from_the_forms_that_trainers_print(line: str) -> None:
    row = parse_row(line, at=None)

    assert row is not None
    assert (row.step, row.values) == ROWS[line]


@pytest.mark.parametrize(
    "line", ["", "12:30:00 started", "time: 12", "{not a dict", "loss is nan", "a/b:c", "{}"]
)
def test_lines_without_numbers_give_nothing(line: str) -> None:
    assert parse_row(line, at=None) is None


@given(st.text())
def test_no_line_is_too_strange_to_be_read(text: str) -> None:
    detector, progress, metrics = Detector(), ProgressReader(), MetricsReader()
    for sink in (detector, progress, metrics):
        sink(LogLine(1, 0.0, text))
    metrics.read_file(text)


def test_the_validation_file_goes_before_the_log() -> None:
    metrics = MetricsReader()
    metrics(LogLine(1, None, "{'step': 1, 'mean_reward': 0.1}"))
    assert [row.values["mean_reward"] for row in metrics.evaluations] == [0.1]

    metrics.read_file("{'step': 1, 'mean_reward': 0.2}\n{'step': 2, 'mean_reward': 0.3}\n")

    assert [row.values["mean_reward"] for row in metrics.evaluations] == [0.2, 0.3]


def test_endless_training_rows_are_thinned_out() -> None:
    metrics = MetricsReader()
    for step in range(6_000):
        metrics(LogLine(step, None, json.dumps({"step": step, "loss": 1.0})))

    assert len(metrics.training) <= 2001
    assert metrics.training[0].step == 0


@pytest.mark.parametrize(
    ("lines", "shown", "eta"),
    [
        (
            ["  0%|          | 0/200 [00:00<?, ?it/s]", " 25%|██▌       | 50/200 [00:50<02:30,  1.00it/s]"],
            "50/200",
            30.0,
        ),
        (["Step 10/100 loss 1", "Step 20/100 loss 1"], "20/100", 80.0),
        (["total_training_steps: 40", "step:10 - a:1", "step:20 - a:1"], "20/40", 20.0),
        (["{'global_step': 5}", "{'global_step': 6}"], "6", None),
        (["Loading weights: 100%|███| 272/272 [00:00<00:00, 2ki/s]"], None, None),
    ],
)
def test_progress_and_eta_come_from_steps(lines: list[str], shown: str | None, eta: float | None) -> None:
    progress = ProgressReader()
    for number, line in enumerate(lines):
        progress(LogLine(number, 1000.0 + 10.0 * number, line))

    found = progress.progress
    assert (found.text if found else None) == shown
    assert (found.eta_s if found else None) == eta


def evaluations(*rewards: float, rate: float = 0.5, tasks: float | None = 100.0) -> list[MetricRow]:
    values = {"task_pass_rate@1": rate, "std_reward": 0.4, **({"total_tasks": tasks} if tasks else {})}
    return [MetricRow(step=float(n), values={**values, "mean_reward": r}) for n, r in enumerate(rewards)]


@pytest.mark.parametrize(
    ("rows", "flat"),
    [
        (evaluations(0.1, 0.9, 0.50, 0.51, 0.52, 0.50, 0.53), True),
        (evaluations(0.50, 0.51, 0.52, 0.50, 0.55), False),
        (evaluations(0.5, 0.5, 0.5, 0.5), False),
        (evaluations(0.5, 0.5, 0.5, 0.5, 0.5, tasks=None), False),
        ([], False),
        ([MetricRow(step=1, values={"total_tasks": 9.0, "pass_n": 1.0})] * 9, False),
    ],
)
def test_a_plateau_is_five_evaluations_within_one_standard_error(rows: list[MetricRow], flat: bool) -> None:
    assert on_plateau(rows, points=5) is flat


def test_one_moving_pass_rate_is_no_plateau() -> None:
    rows = evaluations(0.5, 0.5, 0.5, 0.5, 0.5)
    moving = [
        row.model_copy(update={"values": {**row.values, "task_pass_rate@4": 0.1 * n}})
        for n, row in enumerate(rows)
    ]

    assert on_plateau(rows, points=5)
    assert not on_plateau(moving, points=5)


def test_a_growing_log_is_read_once_and_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    seen: list[str] = []
    reader = LogReader(log, machine=LocalMachine(env={}), sinks=(lambda line: seen.append(line.text),))
    reader.advance()
    for part in ("[2026-01-01 00:00:00] fir", "st\n[posttrain] ours\nsec", "ond\nthird"):
        with log.open("a") as file:
            file.write(part)
        reader.advance()

    assert seen == ["first", "second"]


def stamped(*parts: bytes, seconds: float = 0.0) -> list[bytes]:
    stamper = LineStamper()
    out = b"".join(stamper.feed(part, now=seconds + n) for n, part in enumerate(parts))
    return [line.partition(b"] ")[2] for line in (out + stamper.flush(now=99.0)).splitlines()]


def test_lines_are_stamped_whole_whatever_the_pieces() -> None:
    assert stamped(b"one\ntw", b"o\r", b"\nthree") == [b"one", b"two", b"three"]


def test_progress_bars_are_thinned_and_colours_taken_out() -> None:
    bar = b"".join(b"\r %d/100" % n for n in range(100))

    assert stamped(b"\x1b[31mred\x1b[0m\n" + bar + b"\n") == [b"red", b" 0/100", b" 99/100"]


def test_a_line_without_end_is_cut() -> None:
    lines = stamped(b"x" * 100_000, b"\n")

    assert [len(line) for line in lines] == [100_000, 0]


@given(st.lists(st.binary(max_size=50)))
def test_no_bytes_of_plain_lines_are_lost(parts: list[bytes]) -> None:
    plain = [part.replace(b"\r", b"").replace(b"\x1b", b"") for part in parts]

    assert b"\n".join(stamped(*plain)).strip() == b"".join(plain).strip() or not any(plain)
