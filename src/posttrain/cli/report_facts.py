"""Where `posttrain report` stands: inside a workspace, or beside the lab's runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import UsageError
from posttrain.core.paths import Workspace
from posttrain.grading import client
from posttrain.grading.witness import read_report
from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.workspace import workspace_facts
from posttrain.reports.summary import MARKDOWN, ROWS

_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Place:
    """A summary and the facts that it is held against."""

    folder: Path
    """The folder of the two files."""
    markdown: bytes | None
    rows: bytes | None
    facts: Facts


def in_workspace() -> Place:
    """The workspace that $WORKSPACE names, or the one around the current folder."""
    workspace = Workspace(_workspace())
    return _place(workspace, workspace_facts(workspace.root, served=_served(), now=time.time()))


def _place(workspace: Workspace, facts: Facts) -> Place:
    return Place(
        folder=workspace.reports,
        markdown=read_report(workspace, MARKDOWN),
        rows=read_report(workspace, ROWS),
        facts=facts,
    )


def of_run(run: str) -> Place:
    """A run of the lab by id or folder, with ledger and logs; or any folder that is a workspace."""
    folder = Path(run)
    if "/" in run and _is_workspace(folder):
        return _place(Workspace(folder.resolve()), workspace_facts(folder.resolve(), now=time.time()))
    from posttrain.cli.context import find_run, open_lab
    from posttrain.runs.reporting import read_facts, read_kept

    paths = find_run(open_lab().paths, run)
    facts = read_facts(paths)
    if not paths.summary_check.exists():
        return _place(paths.workspace, facts)
    return Place(
        folder=paths.reports,
        markdown=read_kept(paths.summary(MARKDOWN)),
        rows=read_kept(paths.summary(ROWS)),
        facts=facts,
    )


def _workspace() -> Path:
    named = os.environ.get("WORKSPACE")
    here = Path.cwd()
    folders: list[Path] = [Path(named)] if named else []
    for folder in [*folders, here, *here.parents]:
        if _is_workspace(folder):
            return folder
    raise UsageError(
        "RUN: not inside a workspace (no scores.json or run_meta.json here); go into one, or name a run"
    )


def _is_workspace(folder: Path) -> bool:
    workspace = Workspace(folder)
    return workspace.run_meta.is_file() or workspace.scores.is_file()


def _served() -> list[dict[str, object]]:
    """Entries of the grading server: they have notes and flags, which scores.json has not."""
    url = os.environ.get("GRADING_SERVER_URL")
    if not url:
        return []
    reply = client.call(url, "/submissions", timeout_s=_PATIENCE_S)
    found = reply.content.get("submissions") if reply.status == 200 else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
