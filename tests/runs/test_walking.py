"""Folders that an agent has filled: however deep they are, a run is closed, audited and verified."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from posttrain.core.paths import RunPaths
from posttrain.infra.walking import LONGEST, walk
from posttrain.reports.audit_files import Left, Limits, documents
from posttrain.runs.inventory import take_inventory

LONG_NAME = "d" * 250


def dig(folder: Path, *, levels: int = 20) -> None:
    """Folders within folders, to where no path reaches, with a file on the way and one at the end."""
    descriptor = os.open(folder, os.O_RDONLY)
    for level in range(levels):
        os.mkdir(LONG_NAME, dir_fd=descriptor)
        inner = os.open(LONG_NAME, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
        if level in (1, levels - 1):
            os.close(os.open("rows.txt", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=descriptor))
            os.symlink("rows.txt", "link", dir_fd=descriptor)
    os.close(descriptor)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.workspace.code.mkdir(parents=True)
    return paths


def test_an_inventory_names_a_folder_that_is_too_deep(paths: RunPaths) -> None:
    dig(paths.workspace.code)
    marks = take_inventory(paths)
    (deep,) = [name for name, mark in marks.items() if mark == "too deep"]
    assert len(deep) > LONGEST
    assert f"workspace/code/{LONG_NAME}/{LONG_NAME}/rows.txt" in marks
    assert sum(mark.startswith("link:") for mark in marks.values()) == 1


def test_an_inventory_does_not_depend_on_where_the_lab_lies(paths: RunPaths, tmp_path: Path) -> None:
    dig(paths.workspace.code)
    before = take_inventory(paths)
    elsewhere = tmp_path / ("e" * 200) / "run"
    elsewhere.parent.mkdir()
    paths.root.rename(elsewhere)
    assert take_inventory(RunPaths(elsewhere)) == before


def test_an_audit_lists_a_folder_that_is_too_deep_as_unread(paths: RunPaths) -> None:
    dig(paths.workspace.code)
    left = Left()
    found = documents(paths.workspace.root, skip=frozenset(), limits=Limits(), left=left)
    assert [Path(document.name).name for document in found] == ["rows.txt"]
    assert sum(name.endswith("(too deep)") for name in left.unread) == 1


def test_many_short_levels_are_no_recursion(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(900):
        os.mkdir("a", dir_fd=descriptor)
        inner = os.open("a", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    listings = list(walk(tmp_path))
    assert [listing.too_deep for listing in listings[-2:]] == [False, True]
    assert len(os.fsencode(listings[-1].folder)) == LONGEST + 1


def test_links_to_folders_are_not_entered(tmp_path: Path) -> None:
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").touch()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    listings = [(str(found.folder), found.folders, found.others) for found in walk(tmp_path / "root")]
    assert listings == [(".", ["inner"], ["link"]), ("inner", [], [])]


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Root reads what is closed to all; nobody else does."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_what_the_agent_has_closed_to_us_is_named() -> None:
    with TemporaryDirectory() as place:  # a place that others may pass, unlike pytest's own
        Path(place).chmod(0o755)
        paths = RunPaths(Path(place) / "run")
        paths.workspace.code.mkdir(parents=True)
        (paths.workspace.code / "closed.txt").touch(mode=0o000)
        with an_ordinary_user():
            assert take_inventory(paths)["workspace/code/closed.txt"] == "unreadable"
