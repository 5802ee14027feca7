"""From what was asked to what will be done: names, resources, and the plan that fixes every number."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain import __version__
from posttrain.agents.environment import check_pass_env
from posttrain.agents.programs import check_keys, find_programs
from posttrain.agents.texts import rules_hash
from posttrain.benchmarks.model_settings import read_table, with_model_settings
from posttrain.benchmarks.prepare import TaskData, prepare_task
from posttrain.benchmarks.prompts import build_prompts, prompt_settings
from posttrain.benchmarks.splits import make_items
from posttrain.checkpoints.comparing import require_numpy
from posttrain.checkpoints.provenance import read_siblings
from posttrain.core.engine import PinnedPrompt, RenderedPrompt
from posttrain.core.errors import UsageError
from posttrain.core.runs import Isolation, ModelPlan, Network, RunPlan, RunRequest, TaskPlan
from posttrain.core.scores import Item
from posttrain.core.specs import AgentSpec, TaskSpec
from posttrain.engines.client import EngineWorker
from posttrain.engines.plan import (
    EngineChoice,
    choose_engine,
    choose_numeric,
    library_versions,
    require_extras,
)
from posttrain.grading.adapting import Tool
from posttrain.infra.datasets import TaskSource
from posttrain.infra.digests import digest_tree
from posttrain.infra.files import read_jsonl
from posttrain.infra.gpus import list_gpus
from posttrain.infra.models import Model, resolve_model
from posttrain.infra.processes import Spawner
from posttrain.runs.facts import opened_base
from posttrain.runs.harness import Harness
from posttrain.runs.isolation import resolve_isolation, resolve_network, worker_views
from posttrain.runs.lab import Lab
from posttrain.runs.tools import task_tool

SAMPLES = 3
"""Rendered rows that every workspace shows."""
KEPT_CHECKPOINTS = 8
"""How many submissions the disk must hold before a run starts."""
FROZEN_DATE = "2025-01-01"
"""The day that templates see which ask for today's: a number must not depend on when it was measured."""


@dataclass(frozen=True)
class Chosen:
    """Step 1: names resolved and prerequisites checked. Nothing has been created yet."""

    request: RunRequest
    agent: AgentSpec
    task: TaskSpec
    control: TaskSpec | None
    """The variant under which the untouched base shows what a prompt alone gives."""
    engine: EngineChoice
    isolation: Isolation
    network: Network
    tool: Tool | None = None
    """What asks and judges, where the task is a tool's."""


@dataclass(frozen=True)
class Prepared:
    """Steps 2 and 3: what the plan was made of, beside the plan."""

    chosen: Chosen
    data: TaskData
    model: Model
    pinned: PinnedPrompt
    samples: tuple[RenderedPrompt, ...]
    siblings: Mapping[str, Path]
    """Folders of other fine-tunes of the base that the lab knows."""
    plan: RunPlan

    @property
    def agent(self) -> AgentSpec:
        return self.chosen.agent

    @property
    def task(self) -> TaskSpec:
        return self.chosen.task

    @property
    def request(self) -> RunRequest:
        return self.plan.request

    def items(self, split: str) -> tuple[Item, ...]:
        return self.data.val if split == "val" else self.data.test


def choose(request: RunRequest, lab: Lab, spawner: Spawner) -> Chosen:
    """Resolve names and check what can be checked without fetching. UsageError names what is wrong."""
    agent = lab.agents.load(request.agent)
    table = read_table(lab.paths.model_settings)
    task = with_model_settings(lab.tasks.load(request.task), request.model, table)
    control = lab.tasks.format_control(task)
    if control is not None:
        control = with_model_settings(control, request.model, table)
    check_pass_env(request.pass_env, lab.host_env)
    check_keys(agent, lab.host_env, request.pass_env)
    find_programs(agent, lab.host_env, lab=lab.paths)
    require_extras(agent.needs, needed_for=f"the agent {agent.id}")
    engine = choose_engine(request.engine, gpus=_visible_gpus(lab), needs=task.needs)
    isolation = resolve_isolation(request, spawner)
    network = resolve_network(request, agent, isolation)
    tool = task_tool(task, lab)
    return Chosen(request, agent, task, control, engine, isolation, network, tool)


def _visible_gpus(lab: Lab) -> tuple[str, ...]:
    return tuple(gpu.id for gpu in list_gpus(visible=lab.host_env.get("CUDA_VISIBLE_DEVICES")))


def prepare(chosen: Chosen, harness: Harness) -> Prepared:
    """Fetch model and data, open the base once, and resolve everything into a plan."""
    request, lab, say = chosen.request, harness.lab, harness.terminal.say
    with harness.signals.interruptible():
        data = prepare_task(
            chosen.task,
            lab=lab.paths,
            source=TaskSource(
                task=chosen.task.data_name,
                lab=lab.paths,
                sources=lab.sources,
                offline=lab.offline,
                progress=say,
            ),
            spawner=harness.spawner,
            salt=request.split_salt,
            protocol=request.protocol,
            limit=request.limit,
            environment=None if lab.offline else lab.sources.environment,
        )
        model = resolve_model(
            request.model, lab=lab.paths, sources=lab.sources, offline=lab.offline, progress=say
        )
        for note in data.notes:
            say(note)
        _require_space(lab, model)
        return _resolve(chosen, harness, model=model, data=data)


def _require_space(lab: Lab, model: Model) -> None:
    """Room for the grader's copies; a run that must stop half way for want of space is worth nothing."""
    needed = KEPT_CHECKPOINTS * model.manifest.bytes
    free = shutil.disk_usage(lab.paths.home).free
    if free < needed:
        raise UsageError(
            f"POSTTRAIN_HOME: {free / 1e9:.1f} GB free in {lab.paths.home}, "
            f"{KEPT_CHECKPOINTS} checkpoints of {model.id} need {needed / 1e9:.1f} GB"
        )


def _resolve(chosen: Chosen, harness: Harness, *, model: Model, data: TaskData) -> Prepared:
    lab, paths, spawner = harness.lab, harness.paths, harness.spawner
    request, task = chosen.request, chosen.task
    numeric = choose_numeric(
        chosen.engine, model=model.facts(), memory_share=request.grading_memory, seed=request.seed
    )
    libraries = library_versions(numeric.engine)
    if chosen.tool is not None:
        libraries |= {"opencompass": chosen.tool.version}
    siblings = known_siblings(lab, model)
    settings = prompt_settings(
        task, has_chat_template=model.facts().has_chat_template, frozen_date=FROZEN_DATE
    )
    views = worker_views(paths.run_id, chosen.isolation, lab)
    opened = opened_base(
        lab.paths.facts,
        model=model,
        numeric=numeric,
        libraries=libraries,
        prompt=settings,
        prompts=build_prompts(make_items(_first_visible(data), None), settings),
        worker=EngineWorker(
            spawner,
            log=paths.engine_log,
            gpu=next(iter(chosen.engine.gpus), None),
            view=views.engine(model.folder),
        ),
    )
    pinned = PinnedPrompt(
        prompt=settings, generation=task.generation, stop_token_ids=opened.facts.stop_token_ids
    )
    plan = RunPlan(
        run_id=paths.run_id,
        request=request,
        version=__version__,
        libraries=libraries,
        task=TaskPlan(
            id=task.id,
            digest=data.digest,
            val=tuple(item.id for item in data.val),
            test=tuple(item.id for item in data.test),
            visible=data.visible_rows,
        ),
        siblings=tuple(sorted(siblings)),
        model=ModelPlan(id=model.id, folder=model.name, digest=model.digest, source=model.source),
        agent_digest=digest_tree(chosen.agent.folder),
        prompt=settings,
        generation=task.generation,
        stop_token_ids=opened.facts.stop_token_ids,
        numeric=numeric,
        isolation=chosen.isolation,
        kill=spawner.kill_mode,
        network=chosen.network,
        rules_hash=rules_hash(),
        seed=request.seed,
        host=platform.node(),
        gpus=chosen.engine.gpus,
        env_names=tuple(sorted({*chosen.agent.pass_env, *request.pass_env} & set(lab.host_env))),
        port=harness.door.port,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
    return Prepared(
        chosen=chosen,
        data=data,
        model=model,
        pinned=pinned,
        samples=opened.rendered,
        siblings=siblings,
        plan=plan,
    )


def known_siblings(lab: Lab, model: Model) -> dict[str, Path]:
    """The siblings that the lab registers for a base; UsageError if weights cannot be compared here."""
    siblings = read_siblings(lab.paths, (model.id, model.name))
    if siblings:
        require_numpy("comparing submissions with models/siblings.yaml")
    return siblings


def _first_visible(data: TaskData) -> list[dict[str, Any]]:
    """Rows for the samples of the workspace: visible ones, never held-out ones."""
    path = data.visible / "train.jsonl"
    return list(islice(read_jsonl(path), SAMPLES)) if path.is_file() else []
