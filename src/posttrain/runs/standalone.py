"""Measuring outside a run: the score of a folder, and the baseline of a model, by the same code as in one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from posttrain.benchmarks.model_settings import read_table, with_model_settings
from posttrain.benchmarks.prepare import TaskData, prepare_task
from posttrain.benchmarks.prompts import build_prompts, prompt_settings
from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Assessment, Split
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunRequest
from posttrain.core.scores import Item
from posttrain.core.specs import TaskSpec
from posttrain.engines.plan import Wanted, choose_engine, choose_numeric
from posttrain.grading.exam import Exam, ItemRecord, read_items
from posttrain.grading.ledger import Ledger
from posttrain.grading.workers import Assessor
from posttrain.infra.datasets import TaskSource
from posttrain.infra.gpus import list_gpus
from posttrain.infra.model_folder import check_model_folder, read_facts
from posttrain.infra.models import resolve_model
from posttrain.infra.processes import Spawner
from posttrain.infra.sandbox import require_readable
from posttrain.runs import steps
from posttrain.runs.clock import Clock
from posttrain.runs.folder import Footprint
from posttrain.runs.harness import Harness
from posttrain.runs.history import Measured
from posttrain.runs.isolation import best_isolation, doorway, worker_views
from posttrain.runs.lab import Lab, Terminal
from posttrain.runs.log import RunLog
from posttrain.runs.plan import FROZEN_DATE, choose, prepare
from posttrain.runs.session import Session
from posttrain.runs.signals import StopSignals
from posttrain.runs.tools import task_tool

_LABEL = "grade"


class GradeRequest(Frozen):
    """What `posttrain grade` was asked for."""

    task: str
    model_path: Path
    base: str | None = None
    """Grade as a run on this base would: only tensors are taken from the folder. None: the folder's own
    config, tokenizer and template count."""
    split: Literal["test", "val", "all"] = "test"
    limit: int | None = None
    engine: Wanted = "auto"
    split_salt: Literal["public", "private"] = "public"
    timeout_s: float = 7200.0
    memory_share: float = 0.25


@dataclass(frozen=True)
class FolderGrade:
    """What a folder came to."""

    task: TaskSpec
    items: tuple[Item, ...]
    assessment: Assessment
    records: tuple[ItemRecord, ...]
    """The judged items with the texts, in the order of `items`; no texts for a copy of the base."""


def grade_folder(request: GradeRequest, *, lab: Lab, terminal: Terminal) -> FolderGrade:
    """Grade a model folder on a split of a task.

    Raises UsageError for what the caller has to change, SubmissionFault for a folder that `base` cannot
    take, and the lab's own errors as a run does.
    """
    named = request.base or request.model_path.name
    task = with_model_settings(lab.tasks.load(request.task), named, read_table(lab.paths.model_settings))
    gpus = [gpu.id for gpu in list_gpus(visible=lab.host_env.get("CUDA_VISIBLE_DEVICES"))]
    engine = choose_engine(request.engine, gpus=gpus, needs=task.needs)
    tool = task_tool(task, lab)
    if not request.model_path.is_dir():
        raise UsageError(f"--model-path: {request.model_path} is not a folder")
    with (
        _scratch(lab.paths) as paths,
        StopSignals() as signals,
        signals.interruptible(),
        Spawner() as spawner,
    ):
        base = _base_folder(request, lab, terminal)
        items = _items(_data(request, task, lab, terminal, spawner), request.split)
        facts = read_facts(base)
        settings = prompt_settings(task, has_chat_template=facts.has_chat_template, frozen_date=FROZEN_DATE)
        exam = Exam(
            split="val" if request.split == "val" else "test",
            task=task,
            items=items,
            prompts=tuple(build_prompts(items, settings)),
            prompt=settings,
            generation=task.generation,
            base=base,
            numeric=choose_numeric(engine, model=facts, memory_share=request.memory_share),
            tool=tool,
        )
        views = worker_views(f"{os.getpid()}", best_isolation(spawner), lab)
        folder = None if request.base is None else request.model_path
        if folder is not None:
            require_readable(folder, views.uid)
        with terminal.progress(f"{task.id} {request.split}") as progress:
            assessor = Assessor(
                exam,
                paths=paths,
                timeout_s=request.timeout_s,
                kill_mode=spawner.kill_mode,
                views=views,
                progress=progress,
            )
            gpu = engine.gpus[0] if engine.gpus else None
            assessment = assessor.assess(folder, label=_LABEL, gpu=gpu)
        return FolderGrade(task, items, assessment, read_items(paths.grading_of(_LABEL)))


def _base_folder(request: GradeRequest, lab: Lab, terminal: Terminal) -> Path:
    if request.base is not None:
        model = resolve_model(
            request.base, lab=lab.paths, sources=lab.sources, offline=lab.offline, progress=terminal.say
        )
        return model.folder
    try:
        check_model_folder(request.model_path)
    except UsageError as error:
        raise UsageError(f"--model-path: {error}; or name the model it was made from with --base") from error
    return request.model_path


def _data(request: GradeRequest, task: TaskSpec, lab: Lab, terminal: Terminal, spawner: Spawner) -> TaskData:
    source = TaskSource(
        task=task.data_name, lab=lab.paths, sources=lab.sources, offline=lab.offline, progress=terminal.say
    )
    return prepare_task(
        task,
        lab=lab.paths,
        source=source,
        spawner=spawner,
        salt=request.split_salt,
        limit=request.limit,
        environment=None if lab.offline else lab.sources.environment,
    )


def _items(data: TaskData, split: str) -> tuple[Item, ...]:
    chosen = {"val": data.val, "test": data.test, "all": (*data.val, *data.test)}[split]
    if not chosen:
        raise UsageError(f"--split: this task has no {split} items")
    return chosen


@contextmanager
def _scratch(lab: LabPaths) -> Iterator[RunPaths]:
    """A folder for logs that is gone afterwards; wrong use leaves nothing in the lab home either."""
    footprint = Footprint(lab.home)
    with TemporaryDirectory(prefix="posttrain-") as place:
        try:
            yield RunPaths(Path(place))
        except UsageError:
            footprint.erase(None)
            raise


@dataclass(frozen=True)
class Baseline:
    """The untouched base on one split."""

    split: Split
    assessment: Assessment
    cached: bool


def measure_baseline(request: RunRequest, *, lab: Lab, terminal: Terminal) -> tuple[Baseline, ...]:
    """The baselines that a run with this request would use, measured now if nobody has before."""
    with _scratch(lab.paths) as paths, StopSignals() as signals, Spawner() as spawner:
        chosen = choose(request, lab, spawner)
        with (
            doorway(request, chosen.network) as door,
            RunLog(paths.run_log) as log,
            Ledger(paths.ledger, torn=paths.torn) as ledger,
        ):
            harness = Harness(lab, paths, spawner, signals, terminal, door)
            clock = Clock(paths.clock, timeout_s=request.timeout_s)
            session = Session(harness, prepare(chosen, harness), log, ledger, clock, url_secret="")
            steps.check_task(session)
            measured = steps.measure_baselines(session)
            rows = [Measured.model_validate(r.data) for r in ledger.rows() if r.kind == "baseline"]
    return tuple(Baseline(row.split, measured[row.split], row.cached) for row in rows)
