"""The audit of one run: hidden items against everything that its agent left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter

from posttrain.benchmarks.prepare import prepare_task
from posttrain.core.errors import InfrastructureError, UsageError, boundary
from posttrain.core.grading import Split
from posttrain.core.paths import LabPaths, RunPaths, Workspace
from posttrain.core.runs import RunPlan
from posttrain.core.scores import Item
from posttrain.core.specs import TaskSpec
from posttrain.infra.datasets import TaskSource
from posttrain.infra.digests import digest_value
from posttrain.infra.files import write_json
from posttrain.infra.processes import Spawner
from posttrain.reports.audit import AuditReport, Document, Mention, Searcher
from posttrain.reports.audit_files import Left, Limits, documents, mentions
from posttrain.runs.history import AUDIT
from posttrain.runs.lab import Lab
from posttrain.runs.resuming import read_plan
from posttrain.runs.session import Session

_OURS = Workspace(Path())
_NOT_THE_AGENTS = frozenset(
    path.name
    for path in (
        *(_OURS.models, _OURS.data, _OURS.prompt, _OURS.skills),
        *(_OURS.description, _OURS.instructions, _OURS.rules),
        *(_OURS.run_log, _OURS.agent_log, _OURS.run_meta, _OURS.scores),
    )
)
"""What the lab puts into a workspace."""
_HOSTS = (
    r"(?:huggingface\.co/datasets|datasets-server\.huggingface\.co|hf-mirror\.com|kaggle\.com/datasets"
    r"|raw\.githubusercontent\.com)[^\s\"'<>)]*"
)


def audit_session(session: Session) -> None:
    """Audit the run once, before anything is selected. A failed audit is an event, never the run's end."""
    if session.history.audited:
        return
    items = {split: session.prepared.items(split) for split in session.measured}
    try:
        with session.signals.interruptible(), boundary(InfrastructureError, "the audit"):
            report = audit_workspace(
                session.plan,
                session.paths,
                session.lab.paths,
                task=session.prepared.task,
                items=items,
                visible=session.prepared.data.visible,
            )
            session.paths.reports.mkdir(exist_ok=True)
            write_json(session.paths.audit, report)
    except InfrastructureError as error:
        session.ledger.append("event", {"event": AUDIT, "error": str(error)})
        session.tell(f"audit: {error}")
        return
    session.ledger.append(
        "event",
        {
            "event": AUDIT,
            "flags": report.flags,
            "found": {audit.split: audit.found for audit in report.splits},
            "mentions": len(report.mentions),
            "digest": digest_value(report),
        },
    )
    session.tell(f"audit: {summary(report)}")


def audit_closed(paths: RunPaths, lab: Lab) -> AuditReport:
    """The audit of a run that is over, made anew from what is there now.

    UsageError if the task's items are not those of the run any more.
    """
    if not paths.plan.exists():
        raise UsageError(f"RUN: {paths.run_id} ended before it had a plan; there is nothing to audit")
    plan = read_plan(paths)
    task = lab.tasks.load(plan.request.task)
    source = TaskSource(
        task=task.data_name, lab=lab.paths, sources=lab.sources, offline=lab.offline, progress=lambda _: None
    )
    with Spawner() as spawner:
        data = prepare_task(
            task,
            lab=lab.paths,
            source=source,
            spawner=spawner,
            salt=plan.request.split_salt,
            protocol=plan.request.protocol,
            limit=plan.request.limit,
        )
    if tuple(item.id for item in data.test) != plan.task.test:
        raise UsageError(f"RUN: the items of {plan.task.id} are not those of the run any more")
    splits: dict[Split, Sequence[Item]] = {"test": data.test}
    if plan.request.protocol == "holdout":
        splits = {"val": data.val, **splits}
    return audit_workspace(plan, paths, lab.paths, task=task, items=splits, visible=data.visible)


def audit_workspace(
    plan: RunPlan,
    paths: RunPaths,
    lab: LabPaths,
    *,
    task: TaskSpec,
    items: Mapping[Split, Sequence[Item]],
    visible: Path,
    limits: Limits = Limits(),
) -> AuditReport:
    """Hold all texts of a workspace, and the agent's log, against the hidden items of a run."""
    searcher = Searcher(
        items, fields=_fields(plan), given=list(_given(paths, visible)), procedural=task.procedural
    )
    forbidden = _forbidden(paths, lab, task)
    left, found = Left(), list[Mention]()
    for document in _documents(paths, limits, left):
        searcher.search(document)
        found.extend(mentions(document, forbidden))
    return searcher.report(mentions=found, files=left.files, size=left.bytes, unread=left.unread)


def _documents(paths: RunPaths, limits: Limits, left: Left) -> Iterator[Document]:
    """What the agent left in its workspace, then what it printed."""
    yield from documents(paths.workspace.root, skip=_NOT_THE_AGENTS, limits=limits, left=left)
    if paths.agent_log.is_file():
        with paths.agent_log.open("rb") as file:
            raw = file.read(limits.file_bytes)
        left.files += 1
        left.bytes += len(raw)
        yield Document(paths.agent_log.name, raw.decode("utf-8", "replace"))


def _fields(plan: RunPlan) -> tuple[str, ...]:
    """The fields of a row that its prompt is made of."""
    parsed = Formatter().parse(plan.prompt.template)
    return tuple(dict.fromkeys(name for _, name, _, _ in parsed if name))


def _given(paths: RunPaths, visible: Path) -> Iterator[str]:
    """What every agent of this run was given: rows, prompts, descriptions."""
    rows = sorted(visible.glob("*.jsonl"))
    workspace = paths.workspace
    texts = (workspace.description, workspace.instructions, workspace.rules, *workspace.prompt.glob("*"))
    for path in (*rows, *texts):
        if path.is_file() and not path.is_symlink():
            yield path.read_text("utf-8", "replace")


def _forbidden(paths: RunPaths, lab: LabPaths, task: TaskSpec) -> re.Pattern[str]:
    """Hosts of data sets, this task's own data set, and the lab home outside of the workspace."""
    own = re.escape(str(paths.workspace.root))
    home = rf"(?!{own}){re.escape(str(lab.home))}/(?:datasets|runs|baselines|results\.csv)[^\s\"'<>)]*"
    names = [re.escape(name) for name in (task.dataset,) if name and "/" in name]
    return re.compile("|".join((_HOSTS, home, *names)))


def summary(report: AuditReport) -> str:
    """The audit in a sentence."""
    parts = []
    for audit in report.splits:
        if audit.overlap_share is not None:
            parts.append(f"{100 * audit.overlap_share:.1f} % of {audit.split} among the agent's own rows")
        else:
            mark = " (CONTAMINATED)" if audit.contaminated else ""
            parts.append(f"{audit.found} of {audit.items} {audit.split} items found{mark}")
    if report.mentions:
        parts.append(f"{len(report.mentions)} mentions of forbidden places")
    if report.unread:
        parts.append(f"{len(report.unread)} files not read")
    return "; ".join(parts) or "nothing to hold against"
