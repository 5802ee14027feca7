"""Runs of the agent `rdagent` with a scripted driver model, a tiny base and scripts that need no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.core.paths import RunPaths
from posttrain.research.journal import read_journal
from posttrain.research.nodes import Node
from posttrain.research.places import Places
from run_bench import Bench

_SCRIPT = """\
import json, math, os, shutil, sys, time
from pathlib import Path

learning_rate = {rate}
target = Path(os.environ["CHECKPOINT_DIR"])
print("dry" if os.environ["DRY_RUN"] == "1" else "in earnest")
{first}
with open(os.environ["CURVE_FILE"], "a") as curve:
    for step in range(1, 21):
        loss = {loss}
        curve.write(json.dumps({{"step": step, "loss": loss if math.isfinite(loss) else None}}) + chr(10))
{then}
shutil.copytree(os.environ["MODEL_PATH"], target, dirs_exist_ok=True)
(target / "scripted.json").write_text(json.dumps({{"accuracy": {accuracy}, "seed": 1, "delay_s": {delay}}}))
"""


def program(
    accuracy: float,
    *,
    loss: str = "2.0 / step",
    first: str = "",
    then: str = "",
    rate: float = 1e-4,
    delay: float = 0,
) -> str:
    """A training script whose checkpoint is that good under the scripted engine."""
    return _SCRIPT.format(accuracy=accuracy, loss=loss, first=first, then=then, rate=rate, delay=delay)


@dataclass(frozen=True)
class Turn:
    """What the driver model says in one iteration; None: nothing of use."""

    hypothesis: str
    code: str | None
    keep: bool = False
    slow_s: float = 0.0
    """Of every answer."""
    minutes: float = 0.5
    """Asked for the training."""


def play(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Steps of a scripted LLM, keyed by content, so that a loop that starts again gets the same answers."""
    return [step for number, turn in enumerate(turns, start=1) for step in _answers(number, turn)]


def _answers(number: int, turn: Turn) -> Iterator[dict[str, Any]]:
    def asked(step: str) -> dict[str, Any]:
        return {"when": f"Iteration {number}, step {step}.", "delay_s": turn.slow_s}

    if turn.code is None:
        yield asked("propose") | {"text": "Let us train more."}
        return
    yield asked("propose") | {
        "json": {"hypothesis": turn.hypothesis, "method": "SFT", "minutes": turn.minutes}
    }
    yield asked("code") | {"text": f'{{"changes": "{turn.hypothesis}"}}\n```python\n{turn.code}```'}
    yield asked("review") | {"json": {"observation": f"seen: {turn.hypothesis}", "keep": turn.keep}}


FIVE = (
    Turn("teach the words", program(0.9), keep=True),
    Turn("read another field", 'print({}["expression"])\n'),
    Turn("a far larger rate", program(0.9, loss="10.0 ** step")),
    Turn("", None),
    Turn("a tiny rate", program(0.8), keep=True),
)
"""One that improves, one that crashes, one that diverges, a malformed answer, one that does not help."""


def journal(paths: RunPaths) -> tuple[Node, ...]:
    return read_journal(Places(paths.workspace).journal)


def shape(nodes: Sequence[Node]) -> list[Any]:
    """What must be equal between an unbroken run and one that was killed: all but times, ids and costs."""
    return [
        (
            node.number,
            node.kind,
            node.parent,
            json.dumps(node.idea, sort_keys=True),
            node.files,
            node.decision.model_dump(exclude={"reason"}),
            node.failure and node.failure.fault,
            node.grade and (node.grade.score, node.grade.model_path),
            node.opinion,
        )
        for node in nodes
    ]


def begin(bench: Bench, *options: str) -> subprocess.Popen[bytes]:
    """A run of `rdagent` that a test may kill."""
    words = ("--agent", "rdagent", "--task", "boolean", "--model", str(bench.base), "--port", "0")
    return _start(bench, *words, *options)


def resume(bench: Bench, run_id: str) -> subprocess.Popen[bytes]:
    """The same run, gone on with."""
    return _start(bench, "--resume", run_id)


def _start(bench: Bench, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "posttrain", "run", *words],
        cwd=bench.lab.home.parent,
        env={**os.environ, "POSTTRAIN_HOME": str(bench.lab.home), **bench.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_after(
    bench: Bench,
    process: subprocess.Popen[bytes],
    step: str,
    iteration: int,
    *,
    within_s: float = 180.0,
    delay_s: float = 0.15,
) -> RunPaths:
    """Kill the harness a moment after the result of a step has appeared: in the step that follows."""
    deadline = time.monotonic() + within_s
    while not any(bench.lab.runs.glob(f"*/*/workspace/research/n{iteration:03}/{step}.json")):
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return bench.only
