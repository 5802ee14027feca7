"""`posttrain list`: what there is to run, and what was run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from posttrain.cli.context import open_lab
from posttrain.cli.output import gain, one_line, points, print_json, print_table
from posttrain.core.errors import PosttrainError
from posttrain.core.paths import RunPaths
from posttrain.core.runs import RunRecord, RunRequest, Status
from posttrain.runs.lab import Lab


def list_(
    what: Annotated[Literal["tasks", "agents", "models", "runs"], typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """List tasks, agents, models or runs."""
    lister = {"tasks": _tasks, "agents": _agents, "models": _models, "runs": _runs}[what]
    columns, rows = lister(open_lab())
    if as_json:
        print_json(rows)
        return
    if not rows:
        print(f"no {what} yet")
        return
    print_table(columns, [[_cell(row[column]) for column in columns] for row in rows], right=_NUMBERS)


_NUMBERS = ("MB", "score")
_Listed = tuple[tuple[str, ...], list[dict[str, object]]]


def _cell(value: object) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if isinstance(value, float):
        return points(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return one_line(str(value))


def _tasks(here: Lab) -> _Listed:
    rows: list[dict[str, object]] = []
    broken = here.tasks.broken()
    for name in here.tasks.names():
        row: dict[str, object] = {"task": name, "variants": [], "evaluator": "", "title": "", "broken": None}
        if name in broken:
            row["broken"] = broken[name]
        else:
            spec = here.tasks.load(name)
            row |= {
                "variants": list(here.tasks.variants(name)),
                "evaluator": spec.evaluator,
                "title": spec.title,
            }
        rows.append(row | {"folder": str(here.tasks.folder(name))})
    return _columns(("task", "variants", "evaluator", "title"), rows)


def _agents(here: Lab) -> _Listed:
    rows: list[dict[str, object]] = []
    for name in here.agents.names():
        spec = here.agents.load(name)
        rows.append(
            {
                "agent": name,
                "network": spec.network,
                "control": spec.control,
                "description": spec.description or spec.name,
                "broken": None,
                "folder": str(spec.folder),
            }
        )
    for name, reason in sorted(here.agents.broken().items()):
        rows.append(
            {
                "agent": name,
                "network": "",
                "control": False,
                "description": "",
                "broken": reason,
                "folder": "",
            }
        )
    return _columns(("agent", "network", "control", "description"), rows)


def _models(here: Lab) -> _Listed:
    from posttrain.infra.models import list_models

    rows: list[dict[str, object]] = [
        {
            "model": model.id,
            "MB": round(model.bytes / 1e6, 1) if model.bytes is not None else None,
            "source": model.source,
            "folder": str(model.folder) if model.folder else "not fetched yet",
        }
        for model in list_models(here.paths)
    ]
    return ("model", "MB", "source", "folder"), rows


def _columns(columns: tuple[str, ...], rows: list[dict[str, object]]) -> _Listed:
    """The column of broken ones only where there is one."""
    return (*columns, "broken") if any(row["broken"] for row in rows) else columns, rows


@dataclass(frozen=True)
class RunLine:
    """One run as the list shows it."""

    run: str
    status: str
    task: str
    agent: str
    model: str
    score: float | None
    improvement: str


def _runs(here: Lab) -> _Listed:
    lines = [run_line(RunPaths(path.parent)) for path in here.paths.runs.glob("*/*/request.json")]
    rows: list[dict[str, object]] = [asdict(line) for line in sorted(lines, key=lambda line: line.run)]
    return ("run", "status", "task", "agent", "model", "score", "improvement"), rows


def run_line(paths: RunPaths) -> RunLine:
    """The line of one run; a run without a record is running, or died."""
    try:
        request = RunRequest.model_validate_json(paths.request.read_bytes())
        record = read_record(paths)
    except (OSError, ValidationError, PosttrainError):
        return RunLine(paths.run_id, "unreadable", paths.root.parent.name, "", "", None, "")
    result = record.result if record else None
    return RunLine(
        run=paths.run_id,
        status=(record.status if record else Status.RUNNING).value,
        task=request.task,
        agent=request.agent,
        model=request.model,
        score=result.score.value if result else None,
        improvement=gain(result.improvement.value, result.improvement.ci95) if result else "",
    )


def read_record(paths: RunPaths) -> RunRecord | None:
    """The record of a run, None while there is none; ValidationError if it is not one."""
    if not paths.record.is_file():
        return None
    return RunRecord.model_validate_json(paths.record.read_bytes())
