from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from posttrain.core.errors import UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra.datasets import TaskSource, read_rows
from posttrain.infra.models import Sources
from posttrain.testing.hub import SHA, FakeHub

ROWS = [{"question": "1+1", "answer": "2"}, {"question": "naïve – 你好", "answer": "x"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def _source(
    lab: LabPaths, *roots: Path, task: str = "sums", sources: Sources | None = None, offline: bool = True
) -> TaskSource:
    return TaskSource(task, lab, sources or Sources(data=roots), offline=offline, progress=lambda line: None)


def _write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("train.jsonl", LINES),
        ("train.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("train.json", json.dumps(ROWS)),
        ("train.json", json.dumps({"canary": "…", "examples": ROWS})),
        ("train.csv", "question,answer\r\n1+1,2\r\nnaïve – 你好,x\r\n"),
    ],
)
def test_rows_are_the_same_in_every_form(lab: LabPaths, tmp_path: Path, name: str, data: str | bytes) -> None:
    _write(tmp_path / "data" / "sums" / name, data)
    assert list(_source(lab, tmp_path / "data").rows("org/sums", "main", "train")) == ROWS


@pytest.mark.parametrize("place", ["sums/easy/test.jsonl", "sums/easy-test.jsonl", "sums/easy.jsonl"])
def test_a_configuration_has_its_own_file(lab: LabPaths, tmp_path: Path, place: str) -> None:
    _write(tmp_path / place, LINES)
    assert list(_source(lab, tmp_path).rows("org/sums", "easy", "test")) == ROWS


def test_rows_of_another_configuration_are_never_taken(lab: LabPaths, tmp_path: Path) -> None:
    _write(tmp_path / "sums" / "test.jsonl", LINES)
    with pytest.raises(UsageError, match="not found"):
        _source(lab, tmp_path).rows("org/sums", "easy", "test")


def test_a_data_set_is_also_found_under_its_own_name(lab: LabPaths, tmp_path: Path) -> None:
    _write(tmp_path / "mbpp" / "test.jsonl", LINES)
    source = _source(lab, tmp_path, task="humaneval")
    assert list(source.rows("google/mbpp", None, "test")) == ROWS


def test_roots_are_searched_in_order_and_adopted_folders_last(lab: LabPaths, tmp_path: Path) -> None:
    for root, answer in (("first", "a"), ("rl_files/datasets", "b")):
        _write(tmp_path / root / "sums" / "train.jsonl", json.dumps({"answer": answer}))
    sources = Sources(data=(tmp_path / "first",), adopted=(tmp_path / "rl_files",))
    assert list(_source(lab, sources=sources).rows("org/sums", None, "train")) == [{"answer": "a"}]
    (tmp_path / "first" / "sums" / "train.jsonl").unlink()
    assert list(_source(lab, sources=sources).rows("org/sums", None, "train")) == [{"answer": "b"}]


def test_missing_rows_name_the_data_set_and_the_paths_to_fill(lab: LabPaths, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data set org/sums \(train\): not found") as refused:
        _source(lab, tmp_path).rows("org/sums", "main", "train")
    assert str(tmp_path / "sums" / "train.jsonl") in str(refused.value)
    assert str(lab.hub_rows / "org" / "sums" / "main" / "train.jsonl") in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(lab.home.iterdir())


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("train.jsonl", '{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        ("train.jsonl", "[1, 2]\n", "row 1 is not an object"),
        ("train.jsonl", "\n\n", "holds no rows"),
        ("train.jsonl", b"\xff\xfe{}\n", "cannot be read"),
        ("train.json", '{"rows": []}', "neither a list of rows"),
        ("train.json", '["a"]', "row 1 is not an object"),
        ("train.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:-12], "cannot be read"),
        ("train.jsonl.gz", b"not gzip", "cannot be read"),
        ("train.csv", 'a,b\n"open,1\n', "cannot be read"),
    ],
)
def test_rows_that_cannot_be_read_are_named(
    lab: LabPaths, tmp_path: Path, name: str, data: str | bytes, named: str
) -> None:
    path = _write(tmp_path / "sums" / name, data)
    with pytest.raises(UsageError, match=named) as refused:
        list(_source(lab, tmp_path).rows("org/sums", None, "train"))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("name", ["..", "../x", "a/../../b", "", "/etc/passwd", "a\x00b", "a b"])
def test_names_that_lead_elsewhere_are_refused(lab: LabPaths, tmp_path: Path, name: str) -> None:
    source = _source(lab, tmp_path)
    with pytest.raises(UsageError, match="not a name"):
        source.file("org/sums", name)
    with pytest.raises(UsageError, match="not a name"):
        source.rows(name, None, "train")


def test_a_file_of_a_repository_is_found_with_or_without_its_folder(lab: LabPaths, tmp_path: Path) -> None:
    path = _write(tmp_path / "sums" / "Sums.jsonl.gz", gzip.compress(LINES.encode(), mtime=0))
    assert _source(lab, tmp_path).file("org/sums", "data/Sums.jsonl.gz") == path


def test_rows_put_where_the_message_says_are_used(lab: LabPaths) -> None:
    _write(lab.hub_rows / "org" / "sums" / "main" / "train.jsonl", LINES)
    assert list(_source(lab).rows("org/sums", "main", "train")) == ROWS


def test_a_file_comes_from_the_hub_once_with_its_commit(lab: LabPaths, hub: FakeHub) -> None:
    sources = Sources(environment={"HF_ENDPOINT": hub.url, "PATH": os.defpath})
    source = _source(lab, sources=sources, offline=False)
    path = source.file("org/rows", "train.jsonl")
    assert list(read_rows(path)) == [{"question": "1+1", "answer": "2"}]
    assert json.loads((path.parent / ".train.jsonl.source.json").read_text("utf-8"))["revision"] == SHA
    asked = len(hub.requests)
    assert source.file("org/rows", "train.jsonl") == path
    assert len(hub.requests) == asked


def test_rows_come_from_the_hub_once(lab: LabPaths, hub: FakeHub) -> None:
    pytest.importorskip("datasets")
    sources = Sources(
        environment={"HF_ENDPOINT": hub.url, "PATH": os.defpath, "HF_HOME": str(lab.home / "hf")}
    )
    source = _source(lab, sources=sources, offline=False)
    expected = [{"question": "1+1", "answer": "2"}]
    assert list(source.rows("org/rows", None, "train")) == expected
    asked = len(hub.requests)
    assert list(source.rows("org/rows", None, "train")) == expected
    assert len(hub.requests) == asked


def test_a_data_set_that_the_hub_lacks_is_one_line(lab: LabPaths, hub: FakeHub) -> None:
    sources = Sources(environment={"HF_ENDPOINT": hub.url, "PATH": os.defpath})
    with pytest.raises(UsageError, match="data set org/absent: not found") as refused:
        _source(lab, sources=sources, offline=False).file("org/absent", "x.jsonl")
    assert "\n" not in str(refused.value)


def test_the_real_benchmark_files_are_readable(lab: LabPaths, shared_data: Path) -> None:
    def count(task: str, config: str | None, split: str) -> int:
        return len(list(_source(lab, shared_data, task=task).rows(f"org/{task}", config, split)))

    assert count("gsm8k", "main", "train") == 7473
    assert count("gsm8k", "main", "test") == 1319
    assert count("bbh", "boolean_expressions", "test") == 250
    human_eval = _source(lab, shared_data, task="humaneval").file("org/humaneval", "HumanEval.jsonl.gz")
    assert len(list(read_rows(human_eval))) == 164
