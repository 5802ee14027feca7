"""`posttrain report` in a workspace whose exports an agent has turned into something else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from posttrain.core.errors import UsageError
from posttrain.core.paths import Workspace
from posttrain.reports.summaries.workspace import other_logs, workspace_facts

GRADED = {"submission_id": 1, "timestamp": "2026-03-10T10:00:00", "score": 50.0, "improvement": 1.0}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "workspace")
    for folder in (workspace.code, workspace.output, workspace.reports):
        folder.mkdir(parents=True)
    workspace.scores.write_text(json.dumps([GRADED]))
    workspace.run_meta.write_text(json.dumps({"start_time": 1e9, "timeout_s": 60, "end_time": None}))
    return workspace


def test_exports_as_the_lab_writes_them_are_read(workspace: Workspace) -> None:
    facts = workspace_facts(workspace.root, now=2e9)
    assert (len(facts.handed), facts.start, facts.timeout_s, facts.end) == (1, 1e9, 60.0, None)


def test_exports_that_are_not_there_are_not_known(workspace: Workspace) -> None:
    workspace.scores.unlink()
    workspace.run_meta.unlink()
    facts = workspace_facts(workspace.root, now=2e9)
    assert (facts.handed_known, facts.start) == (False, None)


@pytest.mark.parametrize("name", ["scores.json", "run_meta.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"1", b'"x"', b"\xff", b"[" * 200_000, b"[NaN]", b'{"start_time": Infinity}', b"9" * 5000],
)
def test_an_export_with_other_content_is_named(workspace: Workspace, name: str, content: bytes) -> None:
    (workspace.root / name).write_bytes(content)
    with pytest.raises(UsageError, match=name):
        workspace_facts(workspace.root, now=2e9)


@pytest.mark.parametrize("name", ["scores.json", "run_meta.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "dead link"])
def test_an_export_that_is_no_file_is_named(workspace: Workspace, name: str, kind: str) -> None:
    path = workspace.root / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(UsageError, match=name):
        workspace_facts(workspace.root, now=2e9)


@pytest.mark.parametrize("value", ["now", True, -1, 1e300, [], {}])
@pytest.mark.parametrize("name", ["start_time", "timeout_s", "end_time"])
def test_a_time_that_is_none_is_named(workspace: Workspace, name: str, value: object) -> None:
    workspace.run_meta.write_text(json.dumps({name: value}))
    with pytest.raises(UsageError, match=f"run_meta.json: {name}"):
        workspace_facts(workspace.root, now=2e9)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "linked folder"])
def test_logs_of_others_are_not_read(workspace: Workspace, tmp_path: Path, kind: str) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "a.log").write_text("a secret of the host")
    (workspace.output / "own.log").write_text("mine")
    place = workspace.code / "a.log"
    if kind == "link":
        place.symlink_to(foreign / "a.log")
    elif kind == "hard link":
        place.hardlink_to(foreign / "a.log")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        (workspace.code / "inner").symlink_to(foreign)
    assert [(log.name, log.text) for log in other_logs(workspace)] == [("output/own.log", "mine")]
