"""Tool environments that a run needs: one that asks and judges, and those that an agent is shown."""

from __future__ import annotations

from pathlib import Path

from posttrain.benchmarks.prompts import exemplar_rows, prompt_settings
from posttrain.core.scores import Item
from posttrain.core.specs import TaskSpec
from posttrain.evaluators.opencompass.inputs import find_config
from posttrain.evaluators.opencompass.settings import TOOL, config_name, is_opencompass, read_settings
from posttrain.evaluators.selfcheck import SelfCheck
from posttrain.grading.adapting import Adapter, Tool
from posttrain.grading.rehearsal import rehearse
from posttrain.grading.views import WorkerViews
from posttrain.infra.processes import Spawner
from posttrain.infra.tool_envs.environments import package_folder, require
from posttrain.runs.lab import Lab


def task_tool(task: TaskSpec, lab: Lab) -> Tool | None:
    """The tool that grades a task; None for our own evaluators.

    UsageError if it is not installed, with the command that installs it, or has no such configuration.
    """
    if not is_opencompass(task.evaluator):
        return None
    read_settings(task.evaluator_settings, where=task.id)
    env = require(TOOL, lab.paths, lab.host_env, needed_for=task.id, field="--task")
    package = package_folder(env, "opencompass")
    find_config(package, config_name(task.evaluator))
    return Tool(env, package, tuple(exemplar_rows(task.folder)))


def tool_check(
    tool: Tool | None,
    task: TaskSpec,
    items: tuple[Item, ...],
    folder: Path,
    *,
    spawner: Spawner,
    views: WorkerViews,
    timeout_s: float,
) -> SelfCheck | None:
    """Whether a tool judges gold and empty answers as it should; None where no tool judges."""
    if tool is None:
        return None
    adapter = Adapter(
        task=task,
        tool=tool,
        items=items,
        prompt=prompt_settings(task, has_chat_template=True),
        generation=task.generation,
        timeout_s=timeout_s,
    )
    return rehearse(adapter, folder, spawner=spawner, views=views)
