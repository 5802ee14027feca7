"""A run folder with a scripted assessor at the end of the road: everything before it is the real thing."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from posttrain.benchmarks.prompts import build_prompts, prompt_settings
from posttrain.checkpoints.snapshot import SnapshotLimits
from posttrain.core.engine import NumericPlan
from posttrain.core.errors import (
    DeviceBusy,
    InfrastructureError,
    PluginError,
    Rejected,
    Unloadable,
    WorkerDied,
)
from posttrain.core.grading import Assessment, LoadReport
from posttrain.core.paths import RunPaths
from posttrain.core.scores import Evaluation, Item, ItemResult, Metric, Score
from posttrain.core.specs import TaskSpec
from posttrain.core.statistics import binary_standard_error, wilson
from posttrain.engines.scripted import Script, write_scripted
from posttrain.grading.answers import RulesNote
from posttrain.grading.app import Service, build_app
from posttrain.grading.client import Reply, call
from posttrain.grading.exam import Exam
from posttrain.grading.exports import Exports
from posttrain.grading.grader import Grader
from posttrain.grading.ledger import Ledger
from posttrain.grading.server import GradingServer, base_url, bind_tcp
from posttrain.grading.verdicts import Terms
from posttrain.testing.tiny import fine_tuned, tiny_model

ITEMS = 200
SECRET = "0123456789abcdef0123456789abcdef"
LIMITS = SnapshotLimits(weight_bytes=4 << 20, settle_s=0.05)
FAULTS: dict[str, Callable[[], Exception]] = {
    "rejected": lambda: Rejected("is a sibling of the base", hint="Train the base."),
    "unloadable": lambda: Unloadable("a tensor is missing", hint="Save the whole model."),
    "died": lambda: WorkerDied("the worker ended with -9"),
    "busy": lambda: DeviceBusy("9 of 10 GB are in use"),
    "plugin": lambda: PluginError("eval.py raised KeyError"),
    "bug": lambda: ZeroDivisionError("division by zero"),
}


def evaluation(right: int, *, n: int = ITEMS) -> Evaluation:
    """An evaluation with the first `right` of `n` items right."""
    low, high = wilson(right, n)
    score = Score(
        metric=Metric(),
        value=100 * right / n,
        n=n,
        stderr=100 * binary_standard_error(right / n, n),
        ci95=(100 * low, 100 * high),
    )
    items = tuple(ItemResult(id=f"i{k}", value=float(k < right)) for k in range(n))
    return Evaluation(score=score, items=items)


def write_safetensors(path: Path, data: bytes, *, name: str = "w") -> Path:
    """One file with one tensor of bytes."""
    header = json.dumps(
        {name: {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    ).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def checkpoint(folder: Path, *, right: int = 120, content: bytes = b"weights", **script: Any) -> Path:
    """A checkpoint folder whose config.json tells the scripted assessor what to make of it."""
    write_safetensors(folder / "model.safetensors", content)
    config = {"script": {"right": right, **script}}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


class ScriptedAssessor:
    """Grades as a checkpoint's config.json says; `hold` makes it wait until `let_go`."""

    def __init__(self, *, hold: bool = False) -> None:
        self.calls: list[str] = []
        self.gpus: list[str | None] = []
        self.contents: list[str] = []
        self.failures_left: dict[str, int] = {}
        self.let_go = threading.Event()
        self.cancelled = threading.Event()
        self.entered = threading.Event()
        if not hold:
            self.let_go.set()

    def assess(
        self,
        folder: Path,
        *,
        label: str,
        gpu: str | None = None,
        on_fault: Callable[[str], None] | None = None,
    ) -> Assessment:
        self.calls.append(label)
        self.gpus.append(gpu)
        self.entered.set()
        script = json.loads((folder / "config.json").read_text("utf-8"))["script"]
        self.contents.append(json.dumps(script, sort_keys=True))
        while not self.let_go.wait(0.01):
            if self.cancelled.is_set():
                raise InfrastructureError("cancelled")
        if on_fault is not None and "fault" in script:
            on_fault(script["fault"])
        if "raises" in script:
            raise FAULTS[script["raises"]]()
        time.sleep(script.get("takes_s", 0.0))
        load = LoadReport(dtype="bfloat16", copy_of_base=script.get("copy", False), changed_share=0.5)
        return Assessment(split="val", evaluation=evaluation(script["right"]), load=load)

    def cancel(self) -> None:
        self.cancelled.set()


def scripted_base(folder: Path) -> Path:
    """A tiny base model that answers half of what it is asked right."""
    tiny_model(folder)
    (folder / "scripted.json").write_text(Script(accuracy=0.5).model_dump_json(), "utf-8")
    return folder


def scripted_checkpoint(base: Path, folder: Path, *, weights: int = 1, **script: object) -> Path:
    """A fine-tune of `base` that behaves as a script says; `weights` tells fine-tunes apart."""
    like = fine_tuned(base, base.parent / "weights" / f"{folder.name}-{weights}", seed=weights)
    write_scripted(folder, Script(**script), like=like)
    return folder


def boolean_exam(base: Path, *, items: int = ITEMS) -> Exam:
    """Boolean expressions for real engine workers and scorers, with the scripted engine."""
    task = TaskSpec(
        id="boolean",
        folder=base,
        title="Boolean",
        evaluator="choice",
        evaluator_settings={"labels": ["True", "False"]},
    )
    settings = prompt_settings(task, has_chat_template=True)
    asked = tuple(Item(id=f"i{number}", fields=_expression(number)) for number in range(items))
    return Exam(
        split="val",
        task=task,
        items=asked,
        prompts=tuple(build_prompts(asked, settings)),
        prompt=settings,
        generation=task.generation,
        base=base,
        numeric=NumericPlan(engine="scripted"),
    )


def _expression(number: int) -> dict[str, str]:
    first, second, third = (bool(number & bit) for bit in (1, 2, 4))
    question = f"not {first} or ( {second} and {third} )" + " and True" * (number // 8)
    return {"question": question, "answer": str(not first or (second and third))}


def engine_workers() -> list[int]:
    """Process ids of this process's engine workers that are alive."""
    return workers("posttrain.engines.worker")


def workers(module: str) -> list[int]:
    """Process ids of this process's children that run a module of ours and are alive."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.cmdline()[1:4] == ["-P", "-m", module]:
                found.append(child.pid)
        except psutil.Error:
            continue
    return found


@dataclass
class Allowance:
    """A budget that a test can end."""

    timeout_s: float = 3600.0
    start_time: float = 1_770_000_000.0
    left: float = 3600.0

    def remaining(self) -> float:
        return self.left


@dataclass
class Bench:
    """One run with a running grader; paths of checkpoints are relative to the workspace."""

    paths: RunPaths
    ledger: Ledger
    grader: Grader
    assessor: ScriptedAssessor
    budget: Allowance
    url: str = ""
    service: Service | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def save(self, name: str, **script: Any) -> str:
        checkpoint(self.paths.workspace.output / name, **script)
        return f"output/{name}"

    def post(self, body: Any, endpoint: str = "/submit") -> Reply:
        return call(self.url, endpoint, body=body, timeout_s=60)

    def get(self, endpoint: str) -> Reply:
        return call(self.url, endpoint, timeout_s=60)

    def kinds(self) -> list[str]:
        return [row.kind for row in self.ledger.rows()]


@contextmanager
def bench(
    root: Path,
    *,
    assessor: ScriptedAssessor | None = None,
    gpus: Sequence[str] = (),
    max_submissions: int = 50,
    max_waiting: int = 4,
    baseline: int = 90,
    limits: SnapshotLimits = LIMITS,
) -> Iterator[Bench]:
    """Start (or, on a folder that was used before, resume) a run's grader without its server."""
    paths = RunPaths(root / "run")
    paths.workspace.output.mkdir(parents=True, exist_ok=True)
    budget = Allowance()
    assessor = assessor or ScriptedAssessor()
    exports = Exports(paths.workspace, timeout_s=budget.timeout_s)
    terms = Terms(
        split="val",
        baseline=evaluation(baseline),
        limits=limits,
        max_submissions=max_submissions,
        gpus=tuple(gpus),
        max_waiting=max_waiting,
    )
    with Ledger(paths.ledger, torn=paths.torn) as ledger:
        grader = Grader(
            paths=paths, ledger=ledger, assessor=assessor, terms=terms, budget=budget, exports=exports
        )
        with grader:
            exports.began(budget.start_time)
            grader.open()
            yield Bench(paths, ledger, grader, assessor, budget)


@contextmanager
def served(root: Path, **options: Any) -> Iterator[Bench]:
    """As `bench`, with the HTTP server before it."""
    with bench(root, **options) as made:
        rules = RulesNote(
            text="# Rules\n\nA breach disqualifies the run.\n", sentence="A breach disqualifies the run."
        )
        made.service = Service(
            grader=made.grader,
            rules=rules,
            task="boolean",
            workspace=str(made.paths.workspace.root),
            nonce="n1",
        )
        sock, _ = bind_tcp(0, given=True)
        made.url = base_url(sock.getsockname()[1], SECRET)
        with GradingServer(build_app(made.service, secret=SECRET), [sock]):
            yield made
            made.assessor.let_go.set()
            made.grader.stop()
