"""What a page about a run must not tell when it is given away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from posttrain.core.errors import PosttrainError
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunPlan, RunRequest
from posttrain.infra.files import read_jsonl
from posttrain.reports.visible import Blinds
from posttrain.runs.lab import Lab
from posttrain.runs.secrecy import secret_values

_LEAST_ITEM = 20
"""Shorter questions and answers, such as `True`, stand in every text."""
_LEAST_HOST = 6


def blinds_for(paths: RunPaths, request: RunRequest, plan: RunPlan | None, lab: Lab) -> Blinds:
    """Places of this machine, keys that were passed to the agent, and the task's hidden rows."""
    places = {
        str(paths.workspace.root): "workspace",
        str(paths.root): "run",
        str(lab.paths.home): "$POSTTRAIN_HOME",
        str(lab.launch_folder): ".",
        str(Path.home()): "~",
    }
    secrets = _secrets(request, plan, lab)
    if plan is not None and len(plan.host) >= _LEAST_HOST and plan.host != "localhost":
        secrets = (*secrets, plan.host)
    return Blinds(
        paths={folder: name for folder, name in places.items() if folder != "/"},
        secrets=secrets,
        hidden=tuple(dict.fromkeys(_hidden(lab.paths, _rows_of(request.task, lab)))),
    )


def _secrets(request: RunRequest, plan: RunPlan | None, lab: Lab) -> tuple[str, ...]:
    if plan is None:
        return ()
    try:
        return secret_values(plan, lab.agents.load(request.agent), lab.host_env)
    except PosttrainError:  # the agent's folder is not here any more
        return tuple(lab.host_env[name] for name in plan.env_names if len(lab.host_env.get(name, "")) >= 8)


def _rows_of(task: str, lab: Lab) -> str:
    """Under which task's name the rows lie: some tasks ask another one's."""
    try:
        return lab.tasks.load(task).data_name
    except PosttrainError:  # the task's folder is not here any more
        return task.partition(":")[0]


def _hidden(lab: LabPaths, task: str) -> Iterator[str]:
    """Long texts of the validation and test rows that lie here, whatever their split.

    PosttrainError names a file that cannot be read: what is not known cannot be hidden.
    """
    for path in sorted(lab.dataset(task).glob("private/*/*.jsonl")):
        try:
            for row in read_jsonl(path):
                for text in _texts(row):
                    yield from _spellings(text)
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it does not hold JSON lines"
            raise PosttrainError(
                f"{path}: {reason}; a page could tell the hidden rows that stand there"
            ) from error


def _texts(value: object) -> Iterator[str]:
    """All texts of a row that are long enough to be no accident, those in lists and objects too."""
    if isinstance(value, str):
        if len(value.strip()) >= _LEAST_ITEM:
            yield value.strip()
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _spellings(text: str) -> Iterator[str]:
    """How a text stands in a log or a table: as it is, in one line, and in JSON."""
    yield text
    yield " ".join(text.split())
    for ascii_only in (True, False):
        yield json.dumps(text, ensure_ascii=ascii_only)[1:-1]
