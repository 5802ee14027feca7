"""From a task folder to split rows on disk, with the folder's code in a process of its own."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from posttrain.benchmarks.prepare import TaskData, prepare_task
from posttrain.benchmarks.registry import TaskRegistry
from posttrain.core.errors import PluginError, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra.files import read_jsonl
from posttrain.infra.processes import Spawner

from .folders import DATA_PY, ListedSource, question_rows, task_folder

SPLITS = {"val": {"from": "train", "size": 20}, "test": {"from": "test"}}
HUB = DATA_PY.format(splits=("train", "test"))


def source() -> ListedSource:
    return ListedSource({"train": question_rows(100), "test": question_rows(30, start=500)})


def prepare(
    root: Path,
    lab: LabPaths,
    spawner: Spawner,
    task: str = "quiz",
    rows: ListedSource | None = None,
    **kw: Any,
) -> TaskData:
    return prepare_task(
        TaskRegistry([root]).load(task), lab=lab, source=rows or source(), spawner=spawner, **kw
    )


def test_data_py_gets_rows_from_the_source_and_the_harness_cuts_them(
    tmp_path: Path, lab: LabPaths, spawner: Spawner
) -> None:
    task_folder(tmp_path, data=HUB, splits=SPLITS)
    data = prepare(tmp_path, lab, spawner)
    assert (data.visible_rows, len(data.val), len(data.test)) == (80, 20, 30)
    assert len(list(read_jsonl(data.visible / "train.jsonl"))) == 80
    assert [path.name for path in data.visible.iterdir()] == ["train.jsonl"]


def test_a_second_call_reads_what_the_first_one_made(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    task_folder(tmp_path, data=HUB, splits=SPLITS)
    rows = source()
    first = prepare(tmp_path, lab, spawner, rows=rows)
    asked = list(rows.asked)
    assert prepare(tmp_path, lab, spawner, rows=rows) == first
    assert rows.asked == asked == ["train", "test"]


def test_hidden_rows_lie_where_only_the_owner_can_look(
    tmp_path: Path, lab: LabPaths, spawner: Spawner
) -> None:
    task_folder(tmp_path, data=HUB, splits=SPLITS)
    data = prepare(tmp_path, lab, spawner)
    private = lab.dataset("quiz") / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    hidden = {item.fields["question"] for item in (*data.val, *data.test)}
    shown = {row["question"] for row in read_jsonl(data.visible / "train.jsonl")}
    assert not hidden & shown


def test_damaged_rows_are_made_again(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    task_folder(tmp_path, data=HUB, splits=SPLITS)
    first = prepare(tmp_path, lab, spawner)
    (first.visible / "train.jsonl").write_text("", "utf-8")
    for path in (lab.dataset("quiz") / "private").glob("*/test.jsonl"):
        path.write_text('{"question": "?"}\n', "utf-8")
    assert prepare(tmp_path, lab, spawner) == first


def test_changed_code_is_run_again(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    folder = task_folder(tmp_path, data=HUB, splits=SPLITS)
    rows = source()
    prepare(tmp_path, lab, spawner, rows=rows)
    (folder / "data.py").write_text(HUB + "\n# changed\n", "utf-8")
    prepare(tmp_path, lab, spawner, rows=rows)
    assert rows.asked == ["train", "test"] * 2


def test_protocol_salt_and_limit_are_part_of_the_digest(
    tmp_path: Path, lab: LabPaths, spawner: Spawner
) -> None:
    task_folder(tmp_path, data=HUB, splits=SPLITS, variants={"long": {"generation": {"max_new_tokens": 9}}})
    plain = prepare(tmp_path, lab, spawner)
    others = [
        prepare(tmp_path, lab, spawner, protocol="open"),
        prepare(tmp_path, lab, spawner, salt="private"),
        prepare(tmp_path, lab, spawner, limit=5),
        prepare(tmp_path, lab, spawner, "quiz:long"),
    ]
    assert len({plain.digest, *(other.digest for other in others)}) == 5
    assert len(others[2].val) == len(others[2].test) == 5


def test_open_hides_no_train_row(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    task_folder(tmp_path, data=HUB, splits=SPLITS)
    data = prepare(tmp_path, lab, spawner, protocol="open")
    assert (data.visible_rows, data.val, len(data.test)) == (100, (), 30)


def test_the_lab_home_may_move(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    task_folder(tmp_path, data=HUB, splits=SPLITS)
    other = LabPaths(tmp_path / "elsewhere")
    assert prepare(tmp_path, lab, spawner).digest == prepare(tmp_path, other, spawner).digest


def test_rows_may_simply_lie_in_the_folder(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    task_folder(tmp_path, rows={"train": question_rows(50)})
    data = prepare(tmp_path, lab, spawner)
    assert (data.visible_rows, len(data.val), len(data.test)) == (30, 10, 10)


def test_the_ancestors_function_is_accepted(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    code = (
        "import json\n"
        "def download_train_data(target_dir):\n"
        "    rows = [{'question': f'{n}?', 'answer': str(n)} for n in range(50)]\n"
        "    print('downloading')\n"
        "    (target_dir / 'train.jsonl').write_text(''.join(json.dumps(row) + '\\n' for row in rows))\n"
    )
    task_folder(tmp_path, data=code)
    assert prepare(tmp_path, lab, spawner).visible_rows == 30


def test_rows_that_cannot_be_had_are_told_with_the_path_to_fill(
    tmp_path: Path, lab: LabPaths, spawner: Spawner
) -> None:
    task_folder(tmp_path, data=HUB, splits=SPLITS)
    with pytest.raises(UsageError, match=r"--task quiz: .*put it at /data/train.jsonl"):
        prepare(tmp_path, lab, spawner, rows=ListedSource())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def prepare(target, *, source):\n    1 / 0\n", r"quiz/data.py: ZeroDivisionError"),
        ("import no_such_module\n", r"quiz/data.py: ModuleNotFoundError"),
        ("x = 1\n", r"quiz/data.py: has neither prepare nor download_train_data"),
        ("def prepare(target, *, source):\n    pass\n", r"wrote no .jsonl file"),
        ("def prepare(target):\n    pass\n", r"quiz/data.py: TypeError"),
        ("import os\nprint('bye'); os._exit(3)\n", r"quiz/data.py: its process died"),
        (
            "def prepare(target, *, source):\n    (target / 'train.jsonl').write_text('{')\n",
            r"train.jsonl:1: not JSON",
        ),
        (
            "def prepare(target, *, source):\n    (target / 'train.jsonl').write_text('[1]\\n')\n",
            r"train.jsonl, row 1: not a JSON object",
        ),
    ],
)
def test_code_that_fails_is_a_fault_of_its_folder(
    tmp_path: Path, lab: LabPaths, spawner: Spawner, code: str, said: str
) -> None:
    task_folder(tmp_path, data=code, splits=SPLITS)
    with pytest.raises(PluginError, match=said):
        prepare(tmp_path, lab, spawner)
    assert not list(lab.dataset("quiz").glob("visible/*"))


def test_what_the_code_prints_disturbs_nothing(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    noisy = "import os\nprint('x' * 100_000)\nos.write(1, b'noise\\n')\n" + HUB
    task_folder(tmp_path, data=noisy, splits=SPLITS)
    assert prepare(tmp_path, lab, spawner).visible_rows == 80


def test_the_code_sees_nothing_of_the_harness_environment(
    tmp_path: Path, lab: LabPaths, spawner: Spawner
) -> None:
    os.environ["SOME_API_KEY"] = "secret"
    code = (
        "import json, os\n"
        "def prepare(target, *, source):\n"
        "    rows = [{'question': name, 'answer': '1'} for name in os.environ]\n"
        "    (target / 'train.jsonl').write_text(''.join(json.dumps(r) + '\\n' for r in rows))\n"
    )
    task_folder(tmp_path, data=code, splits={"test": {"from": "train"}})
    try:
        data = prepare(tmp_path, lab, spawner)
    finally:
        del os.environ["SOME_API_KEY"]
    assert "SOME_API_KEY" not in json.dumps([item.fields for item in data.test])
