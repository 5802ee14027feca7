"""What is noted of an agent's reports and code when it hands something in, whatever it put in their place."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from posttrain.core.paths import RunPaths
from posttrain.grading.witness import prefix_digests, take_witness
from posttrain.infra.digests import digest_bytes

SUMMARY = "# 运行总结\n\n## Iteration 1 (x)\n- a\n\n## Iteration 2 (x)\n- b\n".encode()


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "run")
    for folder in (found.workspace.reports, found.workspace.code):
        folder.mkdir(parents=True)
    return found


def test_prefixes_end_where_sections_begin_and_at_the_end(paths: RunPaths) -> None:
    (paths.workspace.reports / "summary.md").write_bytes(SUMMARY)
    mark = take_witness(paths).reports["summary.md"]
    sizes = [prefix.size for prefix in mark.prefixes]
    assert sizes == [SUMMARY.index(b"## Iteration 1"), SUMMARY.index(b"## Iteration 2"), len(SUMMARY)]
    assert mark.prefixes[-1].digest == digest_bytes(SUMMARY)


def test_rows_are_noted_line_by_line(paths: RunPaths) -> None:
    (paths.workspace.reports / "summary.jsonl").write_bytes(b"{}\n{}\n{")
    mark = take_witness(paths).reports["summary.jsonl"]
    assert [prefix.size for prefix in mark.prefixes] == [3, 6, 7]


def test_prefixes_are_digests_of_the_first_bytes() -> None:
    found = prefix_digests(b"abcdef", [6, 2, 9, 0])
    assert found == {0: digest_bytes(b""), 2: digest_bytes(b"ab"), 6: digest_bytes(b"abcdef")}


def test_code_is_kept_once_a_content(paths: RunPaths) -> None:
    (paths.workspace.code / "train.py").write_text("lr = 1e-5\n", "utf-8")
    first = take_witness(paths).code
    assert paths.script(first["code/train.py"]).read_text("utf-8") == "lr = 1e-5\n"
    (paths.workspace.code / "train.py").write_text("lr = 1e-3\n", "utf-8")
    (paths.workspace.code / "copy.py").write_text("lr = 1e-5\n", "utf-8")
    second = take_witness(paths).code
    assert second["code/copy.py"] == first["code/train.py"]
    assert len(list((paths.root / "scripts").iterdir())) == 2


def test_only_scripts_of_a_sane_size_are_kept(paths: RunPaths) -> None:
    (paths.workspace.code / "weights.bin").write_bytes(b"x" * 100)
    (paths.workspace.code / "data.json").write_bytes(b"1" * (1 << 20))
    (paths.workspace.code / "a" / "b" / "c").mkdir(parents=True)
    (paths.workspace.code / "a" / "b" / "near.py").write_text("", "utf-8")
    (paths.workspace.code / "a" / "b" / "c" / "far.py").write_text("", "utf-8")
    for number in range(100):
        (paths.workspace.code / "a" / f"n{number}.py").write_text(str(number), "utf-8")
    names = set(take_witness(paths).code)
    assert 60 <= len(names) <= 64
    assert not names & {"code/weights.bin", "code/data.json", "code/a/b/c/far.py"}


@pytest.mark.parametrize(
    "kind", ["fifo", "folder", "link", "link to a folder", "hard link", "huge", "unreadable"]
)
def test_nothing_in_their_place_holds_up_a_submission(paths: RunPaths, kind: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("private", "utf-8")
    for target in (paths.workspace.reports / "summary.md", paths.workspace.code / "train.py"):
        if kind == "fifo":
            os.mkfifo(target)
        elif kind == "folder":
            target.mkdir()
        elif kind == "link":
            target.symlink_to(secret)
        elif kind == "link to a folder":
            target.parent.rmdir()
            target.parent.symlink_to(tmp_path)
        elif kind == "hard link":
            os.link(secret, target)
        elif kind == "huge":
            with target.open("wb") as file:
                file.truncate(1 << 40)
        else:
            target.write_text("x", "utf-8")
            target.parent.chmod(0)
    begun = time.monotonic()
    try:
        found = take_witness(paths)
    finally:
        for folder in (paths.workspace.reports, paths.workspace.code):
            if not folder.is_symlink():
                folder.chmod(0o755)
    assert time.monotonic() - begun < 5.0
    if kind != "unreadable" or os.getuid() != 0:
        assert (found.reports, found.code) == ({}, {})


def test_text_that_is_no_text_is_noted_all_the_same(paths: RunPaths) -> None:
    raw = b"\xff\x00# \r\n## Iteration 1\r"
    (paths.workspace.reports / "summary.md").write_bytes(raw)
    assert take_witness(paths).reports["summary.md"].prefixes[-1].digest == digest_bytes(raw)


def test_a_full_disk_costs_the_copy_not_the_submission(paths: RunPaths) -> None:
    (paths.root / "scripts").write_text("a file where the folder should be", "utf-8")
    (paths.workspace.code / "train.py").write_text("lr = 1e-5\n", "utf-8")
    assert set(take_witness(paths).code) == {"code/train.py"}
