"""Iterations as sections of reports/summary.md: facts as any reader finds them, words from the journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from posttrain.core.paths import Workspace
from posttrain.infra.files import read_jsonl
from posttrain.reports.summaries.compose import Draft, Round, compose
from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.text import Document, parse
from posttrain.reports.summaries.words import FailureType, Lang, TrainType
from posttrain.reports.summaries.workspace import workspace_facts
from posttrain.reports.summary import MARKDOWN, ROWS, TIME_FORMAT, append_iteration
from posttrain.research.digest import clip
from posttrain.research.nodes import Fault, Node
from posttrain.research.places import Places

_FAULTS: dict[Fault, FailureType] = {
    "crash": FailureType.CODE_ERROR_RUNTIME,
    "refused": FailureType.CODE_ERROR_RUNTIME,
    "cap": FailureType.TIMEOUT_NO_SUBMISSION,
    "no_checkpoint": FailureType.CODE_ERROR_RUNTIME,
    "diverged": FailureType.TRAINING_DIVERGED,
    "timeout": FailureType.TIMEOUT_NO_SUBMISSION,
    "time": FailureType.TIMEOUT_NO_SUBMISSION,
    "ungraded": FailureType.TIMEOUT_NO_SUBMISSION,
}


def append_reports(
    workspace: Workspace,
    nodes: Sequence[Node],
    *,
    served: Iterable[Mapping[str, Any]],
    now: float,
    lang: Lang,
) -> None:
    """Append every iteration that the summary does not have yet."""
    missing = nodes[_reported(workspace.reports) :]
    if not missing:
        return
    facts = workspace_facts(workspace.root, served=served, now=now)
    for node in missing:
        document = _document(workspace.reports)
        before = nodes[node.number - 2] if node.number > 1 else None
        draft = _draft(node, before)
        this = _round(node, facts, workspace)
        append_iteration(workspace.reports, compose(draft, this, document, facts, lang=lang), lang=lang)


def _document(folder: Path) -> Document:
    try:
        return parse((folder / MARKDOWN).read_bytes())
    except OSError:
        return parse(b"")


def _reported(folder: Path) -> int:
    """The last iteration of either file: the next append completes the one that is behind."""
    told = [section.number or 0 for section in _document(folder).sections]
    with suppress(OSError, ValueError, KeyError, TypeError):
        told += [int(row["iteration"]) for row in read_jsonl(folder / ROWS)]
    return max(told, default=0)


def _round(node: Node, facts: Facts, workspace: Workspace) -> Round:
    """The facts of this iteration alone: its submissions and its script."""
    places = Places(workspace).iteration(node.number)
    code = places.code.relative_to(workspace.root).as_posix() + "/"
    output = places.output.relative_to(workspace.root).as_posix()
    return Round(
        number=node.number,
        begin=datetime.fromisoformat(node.started).timestamp(),
        end=datetime.fromisoformat(node.ended).timestamp(),
        own=[entry for entry in facts.handed if f"{entry.path}/".startswith(f"{output}/")],
        scripts=[script for script in facts.scripts if script.name.startswith(code)] if node.files else [],
    )


def _draft(node: Node, before: Node | None) -> Draft:
    began, ended = datetime.fromisoformat(node.started), datetime.fromisoformat(node.ended)
    failure = None if node.failure is None else _FAULTS.get(node.failure.fault, FailureType.UNKNOWN)
    return Draft(
        what=clip(node.changes or node.hypothesis, 600) or "no usable answer of the driver model",
        why=_why(node, before),
        progress=_progress(node),
        news=_news(node, before),
        cause=_cause(node),
        exit_code=_exit_code(node),
        status=None if node.failure is None else "failure",
        failure_type=failure,
        duration_s=max(0, round((ended - began).total_seconds())),
        time=ended.astimezone().strftime(TIME_FORMAT),
        train_type=None if node.files else TrainType.UNKNOWN,
        config=None if node.files else {},
    )


def _exit_code(node: Node) -> int:
    """Of the process that failed; one that we ended, or that never ran, has none of its own.

    A script that ends well and leaves no checkpoint has failed, whatever it says.
    """
    if node.failure is None:
        return 0
    run = node.training or node.dry_run
    if run is None:
        return 1
    if run.exit_code is None:
        return -9
    return 1 if node.failure.fault == "no_checkpoint" else run.exit_code


def _why(node: Node, before: Node | None) -> str:
    """The driver model's reason, with what the last iteration showed."""
    reason = clip(str((node.idea or {}).get("reason") or node.hypothesis), 500) or "no proposal"
    if before is None:
        return reason
    if before.grade is not None:
        grade = before.grade
        evidence = f"scores.json: score {grade.score:.2f}, improvement {grade.improvement:.2f}"
    else:
        evidence = f"agent.log: {clip(_one_line(_cause(before)), 200)}"
    return f"Iteration {before.number}, {evidence}. {reason}"


def _progress(node: Node) -> str:
    told = [] if node.failure is not None else [node.decision.reason]
    if node.opinion is not None:
        told.append(clip(_one_line(node.opinion.observation), 300))
    return "; ".join(told)


def _cause(node: Node) -> str:
    """The failure, as the loop wrote it into the agent's log."""
    return "" if node.failure is None else _one_line(node.failure.text)[:250]


def _news(node: Node, before: Node | None) -> str:
    """What is new where the same kind of failure came again."""
    if node.failure is None or before is None or before.failure is None:
        return ""
    return clip(_one_line(node.hypothesis), 200) or "another answer without the asked form"


def _one_line(text: str) -> str:
    return " ".join(text.split())
