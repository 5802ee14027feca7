"""Any single edit, removal or addition of one file of a finished run is named by `verify`."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths, RunPaths
from posttrain.runs.verification import verify_run
from posttrain.testing.tiny import tiny_model
from survival.kit import Site, Story, version

STRANGE = "code/new\nline \\ back\udcff"
"""A name that no text can show as it is."""


@pytest.fixture(scope="module")
def finished_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab home with one closed run; look, don't touch."""
    place = tmp_path_factory.mktemp("finished")
    lab = LabPaths(place / "home")
    lab.agents.mkdir(parents=True)
    site = Site(lab, tiny_model(place / "base"))
    strange = {"do": "write", "to": STRANGE, "text": "mine"}
    site.agent(
        [{"do": "write", "to": "reports/summary.md", "text": "# 运行总结\n"}, strange, *version(1, 0.6)]
    )
    assert site.begin().end().code == 0
    return lab.home


@pytest.fixture
def finished(finished_home: Path, lab: LabPaths) -> tuple[LabPaths, Story]:
    """A copy of that home of this test alone, as an archive would make it."""
    shutil.copytree(finished_home, lab.home, symlinks=True, dirs_exist_ok=True)
    return lab, Story(RunPaths(next(lab.runs.glob("*/*"))))


def faults(lab: LabPaths, story: Story) -> list[str]:
    return [fault for check in verify_run(story.paths, lab) for fault in check.faults]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


EDITS: dict[str, Callable[[bytes], bytes | None]] = {
    "flip": flipped,
    "flip the last": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "append": lambda content: content + b"\n",
    "truncate": lambda content: content[:-1],
    "empty": lambda content: b"",
    "delete": lambda content: None,
}


def shown(path: Path, root: Path) -> str:
    """A name as `verify` writes it."""
    raw = os.fsencode(path.relative_to(root)).replace(b"\\", b"\\\\")
    return raw.decode("utf-8", "backslashreplace")


def edited_files(
    story: Story, edits: dict[str, Callable[[bytes], bytes | None]]
) -> Iterator[tuple[str, str]]:
    """One edit of one file after the other, each undone before the next: what was done, and the name."""
    for path in sorted(path for path in story.paths.root.rglob("*") if path.is_file()):
        content, status = path.read_bytes(), path.stat()
        for name, edit in edits.items():
            if not content and name not in ("append", "delete"):
                continue
            changed = edit(content)
            if changed is None:
                path.unlink()
            else:
                path.write_bytes(changed)
            yield name, shown(path, story.paths.root)
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def assert_all_named(lab: LabPaths, story: Story, edits: dict[str, Callable[[bytes], bytes | None]]) -> None:
    assert faults(lab, story) == []
    unnamed = [
        (edit, name)
        for edit, name in edited_files(story, edits)
        if not any(name in fault for fault in faults(lab, story))
    ]
    assert unnamed == []
    assert faults(lab, story) == []


def test_a_flipped_bit_in_any_file_is_named(finished: tuple[LabPaths, Story]) -> None:
    assert_all_named(*finished, {"flip": flipped})


@pytest.mark.slow
def test_any_edit_of_any_file_is_named(finished: tuple[LabPaths, Story]) -> None:
    assert_all_named(*finished, EDITS)


def test_a_file_that_was_not_there_is_named(finished: tuple[LabPaths, Story]) -> None:
    lab, story = finished
    folders = [path for path in story.paths.root.rglob("*") if path.is_dir()]
    for folder in (story.paths.root, *folders):
        added = folder / ".added"
        added.touch()
        assert any(shown(added, story.paths.root) in fault for fault in faults(lab, story))
        added.unlink()
    assert faults(lab, story) == []


@pytest.mark.slow
def test_any_cell_of_the_table_is_named(finished: tuple[LabPaths, Story]) -> None:
    lab, story = finished
    header, row = list(csv.reader(lab.results_csv.read_text("utf-8").splitlines()))
    missed = []
    for number, name in enumerate(header):
        other = [*row[:number], changed_cell(row[number]), *row[number + 1 :]]
        with lab.results_csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows((header, other))
        if not any("results.csv" in fault for fault in faults(lab, story)):
            missed.append(name)
    assert missed == []


def changed_cell(cell: str) -> str:
    if cell in ("True", "False"):
        return "False" if cell == "True" else "True"
    try:
        return f"{float(cell) + 1:.2f}"
    except ValueError:
        return f"{cell}1"


@pytest.mark.slow
def test_any_edit_of_a_cached_baseline_is_named(finished: tuple[LabPaths, Story]) -> None:
    lab, story = finished
    for path in lab.baselines.glob("*.json"):
        content = path.read_text("utf-8")
        assert '"value": 1.0' in content
        path.write_text(content.replace('"value": 1.0', '"value": 0.0', 1), "utf-8")
        assert any(f"baselines/{path.name}" in fault for fault in faults(lab, story))
        path.write_text(content, "utf-8")
    assert faults(lab, story) == []


def test_a_row_after_the_end_is_named_unless_it_is_a_verdict(finished: tuple[LabPaths, Story]) -> None:
    from posttrain.grading.ledger import Ledger

    lab, story = finished
    head = story.record.ledger_head
    for kind, sound in (("verdict", True), ("graded", False)):
        data = (
            {"accepted": False, "why": "it peeked", "by": "me"} if sound else story.rows("graded")[0]["data"]
        )
        with Ledger(story.paths.ledger, torn=story.paths.torn) as ledger:
            ledger.append(kind, data)  # type: ignore[arg-type]
        assert (faults(lab, story) == []) is sound
        by_head = [f for check in verify_run(story.paths, lab, head=head) for f in check.faults]
        assert (by_head == []) is sound
