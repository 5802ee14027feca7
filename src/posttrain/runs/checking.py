"""Proving a plugin: what a task or an agent folder owes, tried out with the lab's own parts.

Runs happen in a lab home of their own that is gone afterwards; rows and models are the real home's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from posttrain.benchmarks.prepare import TaskData, prepare_task
from posttrain.benchmarks.splits import reads_as
from posttrain.core.engine import Progress
from posttrain.core.errors import PluginError, PosttrainError, Stopped, UsageError
from posttrain.core.grading import Grade
from posttrain.core.paths import GradingFolder, LabPaths, RunPaths
from posttrain.core.runs import Mode, RunRecord, RunRequest
from posttrain.core.scores import Item
from posttrain.core.specs import TaskSpec
from posttrain.engines.scripted import write_scripted_base
from posttrain.evaluators.aggregate import FEW_ITEMS
from posttrain.evaluators.client import score
from posttrain.evaluators.own import form_of
from posttrain.evaluators.selfcheck import self_check
from posttrain.evaluators.stock import OWN
from posttrain.grading.ledger import read_rows
from posttrain.infra.datasets import TaskSource
from posttrain.infra.files import read_jsonl
from posttrain.infra.processes import Spawner
from posttrain.runs import orchestrator
from posttrain.runs.history import History
from posttrain.runs.isolation import best_isolation, worker_views
from posttrain.runs.lab import Lab, Terminal
from posttrain.runs.tools import task_tool, tool_check
from posttrain.runs.verification import Check

_SCORING_S = 1800.0
_LIMIT = 20
_MANIFEST = "manifest"
_NOOP_S = 300.0
_LAST_WORDS = 5
_PROTOCOLS: tuple[Mode, ...] = ("holdout", "open")


def check_task(task_id: str, *, lab: Lab, terminal: Terminal, model: str | None) -> Iterator[Check]:
    """Manifest, data, splits, evaluator, and that an untouched model gains nothing.

    The last check uses `model`, or else a stand-in with the scripted engine. A check that makes the following
    ones pointless is the last.
    """
    specs: list[TaskSpec] = []
    yield (manifest := _tried(_MANIFEST, lambda: _manifest(task_id, lab, specs)))
    if not manifest.ok:
        return
    data: dict[Mode, TaskData] = {}
    with Spawner() as spawner:
        yield (rows := _tried("data", lambda: _data(specs[0], lab, terminal, spawner, data)))
        if not rows.ok:
            return
        yield _tried("splits", lambda: _splits(specs[0], data))
        for spec in specs:
            yield _tried(f"answers {spec.id}", partial(_answers, spec, data, lab, spawner))
    yield _tried("noop", lambda: _noop(specs[0], lab, model))


def check_agent(
    agent_id: str, *, lab: Lab, terminal: Terminal, model: str, task: str, timeout_s: float
) -> Iterator[Check]:
    """Manifest, and a run with the scripted engine that ends with at least one graded submission."""
    lab.tasks.load(task)
    yield (manifest := _tried(_MANIFEST, lambda: _agent_manifest(agent_id, lab)))
    if not manifest.ok:
        return
    request = RunRequest(
        agent=agent_id,
        task=task,
        model=model,
        timeout_s=timeout_s,
        port=0,
        engine="scripted",
        limit=_LIMIT,
    )
    terminal.say(f"{agent_id} on {task} with {model}, at most {timeout_s:.0f} s")
    yield _tried("submissions", lambda: _submissions(request, lab))


@dataclass(frozen=True)
class _Found:
    """What a check saw and what is wrong with it."""

    detail: str
    faults: tuple[str, ...] = ()


def _tried(name: str, look: Callable[[], _Found]) -> Check:
    """One check; what it raises is its fault. UsageError for a plugin that there is none of."""
    try:
        found = look()
    except Stopped:
        raise
    except PosttrainError as error:
        if (
            name == _MANIFEST
            and isinstance(error, UsageError)
            and not isinstance(error.__cause__, PluginError)
        ):
            raise  # there is no such plugin: wrong use, nothing that was found
        return Check(name=name, detail="", faults=(" ".join(str(error).split()),))
    return Check(name=name, detail=found.detail, faults=found.faults)


# --- a task


def _manifest(task_id: str, lab: Lab, specs: list[TaskSpec]) -> _Found:
    """The task and its variants; a variant that is named stands alone."""
    first = lab.tasks.load(task_id)
    variants = () if first.variant else lab.tasks.variants(first.name)
    specs += [first, *(lab.tasks.load(f"{first.name}:{variant}") for variant in variants)]
    told = f", variants {', '.join(variants)}" if variants else ""
    missing = not (first.folder / "description.md").is_file() and not (first.folder / "config.yaml").is_file()
    faults = ("description.md is missing: the agent is told nothing about the task",) if missing else ()
    return _Found(f"{first.folder}, evaluator {first.evaluator}{told}", faults)


def _data(
    spec: TaskSpec, lab: Lab, terminal: Terminal, spawner: Spawner, data: dict[Mode, TaskData]
) -> _Found:
    source = TaskSource(
        task=spec.data_name, lab=lab.paths, sources=lab.sources, offline=lab.offline, progress=terminal.say
    )
    for protocol in _PROTOCOLS:
        data[protocol] = prepare_task(
            spec,
            lab=lab.paths,
            source=source,
            spawner=spawner,
            protocol=protocol,
            environment=None if lab.offline else lab.sources.environment,
        )
    held, opened = data["holdout"], data["open"]
    told = [
        f"visible {held.visible_rows}, val {len(held.val)}, test {len(held.test)}",
        f"open: visible {opened.visible_rows}, test {len(opened.test)}",
        *held.notes,
    ]
    if 0 < len(held.val) < FEW_ITEMS:
        told.append(f"only {len(held.val)} validation items: every grade will warn")
    empty = [name for name, items in (("val", held.val), ("test", held.test)) if not items]
    return _Found("; ".join(told), tuple(f"no {name} rows under holdout" for name in empty))


def _splits(spec: TaskSpec, data: dict[Mode, TaskData]) -> _Found:
    """No text that is asked lies in two splits."""
    faults: list[str] = []
    for protocol, cut in data.items():
        train = cut.visible / "train.jsonl"
        texts = {
            "visible": {reads_as(row, spec.prompt.template) for row in read_jsonl(train)}
            if train.is_file()
            else set(),
            "val": _texts(spec, cut.val),
            "test": _texts(spec, cut.test),
        }
        for one, other in (("visible", "val"), ("visible", "test"), ("val", "test")):
            both = texts[one] & texts[other]
            if both:
                faults.append(f"{protocol}: {len(both)} rows are both {one} and {other}: {min(both):.80}")
    return _Found("visible, val and test have no question in common", tuple(faults))


def _texts(spec: TaskSpec, items: tuple[Item, ...]) -> set[str]:
    return {reads_as(item.fields, spec.prompt.template) for item in items}


def _answers(spec: TaskSpec, data: dict[Mode, TaskData], lab: Lab, spawner: Spawner) -> _Found:
    """Gold answers to all held-out items score 100, empty ones 0."""
    items = {item.id: item for item in (*data["holdout"].val, *data["holdout"].test)}
    views = worker_views("check", best_isolation(spawner), lab)
    with tempfile.TemporaryDirectory(prefix="posttrain-") as place:
        log = GradingFolder(Path(place)).scorer_log
        tool, asked = task_tool(spec, lab), tuple(items.values())
        found = tool_check(
            tool, spec, asked, Path(place), spawner=spawner, views=views, timeout_s=_SCORING_S
        ) or self_check(
            spec,
            asked,
            score=lambda job: score(
                job, spawner=spawner, log=log, timeout_s=_SCORING_S, view=views.scorer(job)
            ),
        )
    return _Found("; ".join((found.told, *found.warnings)))


def _noop(spec: TaskSpec, lab: Lab, model: str | None) -> _Found:
    """The agent that hands in the base gains exactly nothing."""
    if model is None and spec.evaluator == OWN and form_of(spec.folder) == "run_eval":
        return _Found("left out: eval.py loads checkpoints itself; name one with --model")
    with _scratch(lab, models=model is not None) as there:
        engine: Literal["auto", "scripted"] = "auto"
        if model is None:
            model, engine = str(write_scripted_base(there.paths.home / "stand-in")), "scripted"
        request = RunRequest(
            agent="noop",
            task=spec.id,
            model=model,
            timeout_s=_NOOP_S,
            port=0,
            engine=engine,
            limit=_LIMIT,
        )
        trial = _trial(request, there)
    result = trial.record.result
    if result is None:
        return _Found(trial.told, trial.reasons)
    gained = result.improvement.value
    faults = () if gained == 0.0 else (f"the untouched base improves by {gained:+.2f}",)
    return _Found(f"improves by {gained:+.1f} on {result.score.n} items", faults)


# --- an agent


def _agent_manifest(agent_id: str, lab: Lab) -> _Found:
    spec = lab.agents.load(agent_id)
    return _Found(f"{spec.folder}, start {spec.start}, network {spec.network}")


def _submissions(request: RunRequest, lab: Lab) -> _Found:
    with _scratch(lab) as there:
        trial = _trial(request, there)
    return _Found(trial.told, () if trial.graded else trial.reasons)


# --- a run that is only a trial


@dataclass(frozen=True)
class _Trial:
    """What came of it."""

    record: RunRecord
    graded: int
    told: str
    reasons: tuple[str, ...]
    """What went wrong, if nothing was graded."""


def _trial(request: RunRequest, lab: Lab) -> _Trial:
    record = orchestrator.run(request, lab=lab, terminal=Quiet())
    paths = lab.paths.find_run(record.run_id)
    assert paths is not None
    grades = History(read_rows(paths.ledger)).grades
    graded = sum(grade.score is not None for grade in grades)
    told = f"{len(grades)} handed in, {graded} graded, {_end(record)}"
    return _Trial(record, graded, told, tuple(_reasons(record, grades, paths)))


def _end(record: RunRecord) -> str:
    if record.stopped_at_deadline:
        return "stopped at the deadline"
    if record.agent_exit is None:
        return "the agent was not started" if record.duration_s == 0 else "the agent left no exit code"
    return f"exit code {record.agent_exit} after {record.duration_s:.0f} s"


def _reasons(record: RunRecord, grades: tuple[Grade, ...], paths: RunPaths) -> Iterator[str]:
    """Why nothing was graded, and the agent's last words."""
    if record.reason:
        yield record.reason
        return
    for grade in grades:
        said = f"{grade.error} {grade.hint or ''}".strip()
        yield f"submission {grade.submission_id} is {grade.status.value}: {said}"
    if grades:
        return
    yield f"nothing was handed in ({_end(record)})"
    lines = [line for line in paths.agent_log.read_text("utf-8", "replace").splitlines() if line.strip()]
    for line in lines[-_LAST_WORDS:]:
        yield f"agent.log: {line[:300]}"


@contextmanager
def _scratch(lab: Lab, *, models: bool = True) -> Iterator[Lab]:
    """The lab with an empty home; rows lie where they lay, and so do models if real ones are used."""
    also = ("models", "wheels") if models else ()
    with tempfile.TemporaryDirectory(prefix="posttrain-check-") as place:
        home = LabPaths(Path(place))
        for shared in ("datasets", "envs", *also):
            (lab.paths.home / shared).mkdir(parents=True, exist_ok=True)
            (home.home / shared).symlink_to(lab.paths.home / shared)
        yield replace(lab, paths=home)


class Quiet:
    """A Terminal that says nothing: of a trial run only the outcome counts."""

    def say(self, line: str) -> None:
        """Nothing."""

    def progress(self, title: str) -> nullcontext[Progress]:  # noqa: ARG002
        """Nothing."""
        return nullcontext(lambda done, total: None)  # noqa: ARG005
