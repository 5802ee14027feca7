"""Task folders in the smith format: found, cut, graded on rows that the agent does not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.benchmarks.prepare import prepare_task
from posttrain.benchmarks.registry import TaskRegistry, description
from posttrain.core.errors import PluginError
from posttrain.core.paths import LabPaths
from posttrain.core.scores import Output
from posttrain.evaluators.client import score
from posttrain.evaluators.selfcheck import scoring_job, self_check
from posttrain.infra.files import read_jsonl
from posttrain.infra.processes import Spawner

from .folders import ListedSource

EVAL = """
def evaluate(question, model_answer, reference_answer, level=None, **kwargs):
    print("x" * 20_000)
    if question.get("n") == 3:
        raise RuntimeError("bad row")
    if question.get("n") == 4:
        return 1.7
    return float(model_answer.strip() == reference_answer) * (0.5 if level == "half" else 1.0)
"""


def row(n: int) -> dict[str, Any]:
    return {"question": {"n": n, "问": "多少？"}, "answer": str(n), "level": "half" if n == 5 else "whole"}


def smith_folder(
    root: Path, name: str = "数数", rows: int = 50, test_rows: int = 0, code: str = EVAL, **config: Any
) -> Path:
    folder = root / name
    (folder / "data").mkdir(parents=True)
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in {"name": name, **config}.items()
    ]
    (folder / "config.yaml").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "eval.py").write_text(code, "utf-8")
    for split, numbers in (("train", range(rows)), ("test", range(1000, 1000 + test_rows))):
        if numbers:
            text = "".join(json.dumps(row(n), ensure_ascii=False) + "\n" for n in numbers)
            (folder / "data" / f"{split}.jsonl").write_text(text, "utf-8")
    return folder


def registry(root: Path) -> TaskRegistry:
    return TaskRegistry([], smith_root=root)


def test_folders_become_tasks_and_underscored_ones_do_not(tmp_path: Path) -> None:
    smith_folder(tmp_path)
    smith_folder(tmp_path, "_draft")
    assert registry(tmp_path).names() == ("smith-数数",)
    assert registry(tmp_path).broken() == {}
    assert registry(tmp_path).load("smith-数数").evaluator == "per_sample"


def test_a_broken_folder_breaks_no_other(tmp_path: Path) -> None:
    smith_folder(tmp_path, "good")
    smith_folder(tmp_path, "bad", eval_mode="guess")
    (smith_folder(tmp_path, "worse") / "config.yaml").write_text("name: [", "utf-8")
    smith_folder(tmp_path, "none").joinpath("eval.py").unlink()
    broken = registry(tmp_path).broken()
    assert set(broken) == {"smith-bad", "smith-worse", "smith-none"}
    assert "bad/config.yaml: eval_mode" in broken["smith-bad"]
    assert all("\n" not in reason for reason in broken.values())


@pytest.mark.parametrize(("test_rows", "sizes"), [(0, (30, 10, 10)), (20, (45, 5, 20))])
def test_rows_are_cut_by_the_default_rules(
    tmp_path: Path, lab: LabPaths, spawner: Spawner, test_rows: int, sizes: tuple[int, int, int]
) -> None:
    smith_folder(tmp_path, test_rows=test_rows)
    data = prepare_task(
        registry(tmp_path).load("smith-数数"), lab=lab, source=ListedSource(), spawner=spawner
    )
    assert (data.visible_rows, len(data.val), len(data.test)) == sizes
    visible = {line["answer"] for line in read_jsonl(data.visible / "train.jsonl")}
    assert not visible & {item.fields["answer"] for item in (*data.val, *data.test)}


def test_every_oddity_of_eval_py_costs_its_item_and_is_told(
    tmp_path: Path, lab: LabPaths, spawner: Spawner
) -> None:
    smith_folder(tmp_path)
    spec = registry(tmp_path).load("smith-数数")
    whole = spec.model_copy(update={"splits": type(spec.splits).model_validate({"test": {"from": "train"}})})
    data = prepare_task(whole, lab=lab, source=ListedSource(), spawner=spawner)
    outputs = [Output(text=item.fields["answer"], tokens=1) for item in data.test]
    job = scoring_job(whole, data.test, outputs)
    made = score(job, spawner=spawner, log=tmp_path / "log", timeout_s=60)
    assert made.score.value == pytest.approx(100 * (50 - 2 - 0.5) / 50)
    told = " / ".join(made.score.warnings)
    assert "1 of 50 answers count as wrong: evaluate raised: RuntimeError: bad row" in told
    assert "1 of 50 answers count as wrong: evaluate returned 1.7, no number in [0, 1]" in told
    assert "eval.py printed 1000050 characters" in told


def test_gold_below_100_is_a_warning_for_code_of_the_folder(
    tmp_path: Path, lab: LabPaths, spawner: Spawner
) -> None:
    smith_folder(tmp_path, code="def evaluate(q, a, r, **k):\n    return 0.9 if a == r else 0\n")
    spec = registry(tmp_path).load("smith-数数")
    data = prepare_task(spec, lab=lab, source=ListedSource(), spawner=spawner)
    check = self_check(
        spec, data.test, score=lambda job: score(job, spawner=spawner, log=tmp_path / "log", timeout_s=60)
    )
    assert (check.gold, check.empty) == (pytest.approx(90.0), 0.0)
    assert "gold answers score 90.00" in check.warnings[0]


def test_code_that_rewards_everything_is_refused(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    smith_folder(tmp_path, code="def evaluate(q, a, r, **k):\n    return 1\n")
    spec = registry(tmp_path).load("smith-数数")
    data = prepare_task(spec, lab=lab, source=ListedSource(), spawner=spawner)
    with pytest.raises(PluginError, match=r"gold answers score 100.00, empty ones 100.00"):
        self_check(
            spec, data.test, score=lambda job: score(job, spawner=spawner, log=tmp_path / "log", timeout_s=60)
        )


def test_download_data_runs_in_a_copy_of_the_folder(tmp_path: Path, lab: LabPaths, spawner: Spawner) -> None:
    folder = smith_folder(tmp_path, rows=0)
    (folder / "download_data.py").write_text(
        "import json\nfrom pathlib import Path\nPath('data').mkdir(exist_ok=True)\n"
        "Path('data/train.jsonl').write_text(''.join(\n"
        "    json.dumps({'question': {'n': n}, 'answer': str(n)}) + '\\n' for n in range(50)))\n",
        "utf-8",
    )
    spec = registry(tmp_path).load("smith-数数")
    data = prepare_task(spec, lab=lab, source=ListedSource(), spawner=spawner)
    assert data.visible_rows == 30
    assert not (folder / "data" / "train.jsonl").exists()


def test_the_description_of_the_config_stands_in_for_a_missing_file(tmp_path: Path) -> None:
    folder = smith_folder(tmp_path, description="数数看")
    spec = registry(tmp_path).load("smith-数数")
    assert description(spec) == "# 数数\n\n数数看\n"
    (folder / "description.md").write_text("# Better\n", "utf-8")
    assert description(spec) == "# Better\n"
