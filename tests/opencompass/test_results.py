"""Reading what OpenCompass left: only the number that was asked for can become a score.

The seven oddities that the ancestors' parsers read as scores are here as files, by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.scores import Item
from posttrain.evaluators.opencompass.results import (
    Subset,
    UnreadResult,
    configured,
    newest_run,
    read_results,
)

HEADER = "dataset,version,metric,mode,checkpoint"


def items(count: int, stratum: str | None = None) -> tuple[Item, ...]:
    return tuple(
        Item(id=f"{stratum or 'q'}{index}", fields={"question": f"{index}?", "answer": "1"}, stratum=stratum)
        for index in range(count)
    )


def write_run(
    folder: Path,
    *,
    results: Mapping[str, Any],
    summary: Sequence[str],
    predictions: Mapping[str, int] | None = None,
) -> Path:
    """A run's folder; `predictions` counts the answered items of each data set."""
    for kind in ("results/checkpoint", "predictions/checkpoint", "summary"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for abbr, result in results.items():
        (folder / "results/checkpoint" / f"{abbr}.json").write_text(json.dumps(result))
    for abbr, count in (predictions or {}).items():
        rows = {
            str(index): {"origin_prompt": [{"role": "HUMAN", "prompt": f"{index}?"}], "prediction": "1"}
            for index in range(count)
        }
        (folder / "predictions/checkpoint" / f"{abbr}.json").write_text(json.dumps(rows))
    (folder / "summary" / "summary_1.csv").write_text("\n".join(summary) + "\n")
    return folder


def judged(right: int, count: int) -> list[dict[str, Any]]:
    return [{"pred": ["1"], "answer": ["1"], "correct": [index < right]} for index in range(count)]


def test_items_are_right_or_wrong_as_the_tool_judged_them(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        results={"gsm8k": {"accuracy": 40.0, "details": judged(2, 5)}},
        summary=[HEADER, "gsm8k,1d7fe4,accuracy,gen,40.00"],
        predictions={"gsm8k": 5},
    )
    [read] = read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")
    assert read.by_item
    assert [result.value for result in read.results] == [1, 1, 0, 0, 0]
    assert read.results[0].extracted == "1"
    assert read.predictions[3].question == "3?"


# --- the seven oddities


def test_a_row_of_dashes_is_no_result(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        results={"gsm8k": {"accuracy": 40.0, "details": judged(2, 5)}},
        summary=[HEADER, "gsm8k,-,-,-,-"],
        predictions={"gsm8k": 5},
    )
    with pytest.raises(UnreadResult, match="0 rows of 'accuracy'"):
        read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")


def test_a_dash_for_one_of_two_data_sets_is_no_result(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        results={"one": {"accuracy": 40.0}},
        summary=[HEADER, "one,1d7fe4,accuracy,gen,40.00", "two,1d7fe4,accuracy,gen,-"],
        predictions={"one": 5, "two": 5},
    )
    subsets = [Subset("one", items(5, "a")), Subset("two", items(5, "b"))]
    with pytest.raises(UnreadResult, match="left no results/two"):
        read_results(run, subsets, metric="accuracy")


def test_counters_that_stand_before_the_metric_are_not_the_metric(tmp_path: Path) -> None:
    lines = [HEADER]
    lines += [
        f"humaneval,8e312c,{name},gen,{value}" for name, value in (("pass", "62.00"), ("timeout", "3.00"))
    ]
    run = write_run(
        tmp_path,
        results={"humaneval": {"pass": 62, "timeout": 3, "humaneval_pass@1": 37.80}},
        summary=[*lines, "humaneval,8e312c,humaneval_pass@1,gen,37.80"],
        predictions={"humaneval": 164},
    )
    [read] = read_results(run, [Subset("humaneval", items(164))], metric="humaneval_pass@1")
    assert sum(result.value for result in read.results) / 164 == pytest.approx(0.378)
    with pytest.raises(UnreadResult, match="which has pass, timeout"):
        read_results(run, [Subset("humaneval", items(164))], metric="accuracy")


def test_the_column_of_another_model_is_not_read(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        results={"gsm8k": {"accuracy": 60.0, "details": judged(3, 5)}},
        summary=["dataset,version,metric,mode,base,checkpoint", "gsm8k,1d7fe4,accuracy,gen,20.00,60.00"],
        predictions={"gsm8k": 5},
    )
    [read] = read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")
    assert sum(result.value for result in read.results) == 3
    (run / "summary/summary_1.csv").write_text(
        "dataset,version,metric,mode,base\ngsm8k,1d7fe4,accuracy,gen,60.00\n"
    )
    with pytest.raises(UnreadResult, match="0 columns 'checkpoint'"):
        read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")


@pytest.mark.parametrize("place", ["results", "summary"])
def test_nan_is_no_number(tmp_path: Path, place: str) -> None:
    run = write_run(
        tmp_path,
        results={"gsm8k": {"accuracy": float("nan") if place == "results" else 40.0}},
        summary=[HEADER, f"gsm8k,1d7fe4,accuracy,gen,{'nan' if place == 'summary' else '40.00'}"],
        predictions={"gsm8k": 5},
    )
    with pytest.raises(UnreadResult, match="nan"):
        read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")


def test_data_sets_of_unequal_size_count_by_their_items(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        results={
            "small": {"accuracy": 100.0, "details": judged(2, 2)},
            "large": {"accuracy": 40.0, "details": judged(4, 10)},
        },
        summary=[HEADER, "small,1,accuracy,gen,100.00", "large,1,accuracy,gen,40.00"],
        predictions={"small": 2, "large": 10},
    )
    subsets = [Subset("small", items(2, "a")), Subset("large", items(10, "b"))]
    read = read_results(run, subsets, metric="accuracy")
    values = [result.value for each in read for result in each.results]
    assert sum(values) / len(values) == 0.5  # not the 0.7 of a plain mean over data sets


def test_the_same_metric_by_likelihood_is_another_number(tmp_path: Path) -> None:
    lines = [HEADER, "gsm8k,1,accuracy,ppl,70.00", "gsm8k,1,accuracy,gen,10.00"]
    run = write_run(
        tmp_path,
        results={"gsm8k": {"accuracy": 10.0, "details": judged(1, 10)}},
        summary=lines,
        predictions={"gsm8k": 10},
    )
    [read] = read_results(run, [Subset("gsm8k", items(10))], metric="accuracy")
    assert sum(result.value for result in read.results) == 1
    (run / "summary/summary_1.csv").write_text("\n".join([*lines, lines[2]]) + "\n")
    with pytest.raises(UnreadResult, match="2 rows"):
        read_results(run, [Subset("gsm8k", items(10))], metric="accuracy")


# --- other ways to be incomplete


def whole_run(folder: Path) -> Path:
    return write_run(
        folder,
        results={"gsm8k": {"accuracy": 40.0, "details": judged(2, 5)}},
        summary=[HEADER, "gsm8k,1d7fe4,accuracy,gen,40.00"],
        predictions={"gsm8k": 5},
    )


BROKEN: dict[str, tuple[str, str | None, str]] = {
    "a prediction is missing": (
        "predictions/checkpoint/gsm8k.json",
        '{"0": {"origin_prompt": "x", "prediction": "1"}}',
        "1 predictions for 5",
    ),
    "no predictions": ("predictions/checkpoint/gsm8k.json", None, "left no predictions"),
    "no result": ("results/checkpoint/gsm8k.json", None, "left no results"),
    "a result that is an error": (
        "results/checkpoint/gsm8k.json",
        '{"error": "predictions and references have different length"}',
        "different length",
    ),
    "a torn result": ("results/checkpoint/gsm8k.json", '{"accuracy": 40.0, "det', "is not JSON"),
    "a result that is a list": ("results/checkpoint/gsm8k.json", "[40.0]", "no JSON object"),
    "a result out of range": ("results/checkpoint/gsm8k.json", '{"accuracy": 4000.0}', "from 0 to 100"),
    "a result that is a word": ("results/checkpoint/gsm8k.json", '{"accuracy": "40"}', "no number"),
    "a result that is true": ("results/checkpoint/gsm8k.json", '{"accuracy": true}', "no number"),
    "a result that no float holds": (
        "results/checkpoint/gsm8k.json",
        '{"accuracy": 1' + "0" * 400 + "}",
        "from 0 to 100",
    ),
    "a result without end": ("results/checkpoint/gsm8k.json", "[" * 100_000, "is not JSON"),
    "a share of one, where items were judged": (
        "results/checkpoint/gsm8k.json",
        json.dumps({"accuracy": 0.4, "details": judged(2, 5)}),
        "40.0 in its summary",
    ),
    "a metric of another name": (
        "results/checkpoint/gsm8k.json",
        '{"accuracy (5-shot)": 40.0}',
        "no 'accuracy' in its result",
    ),
    "a summary with two columns of the model": (
        "summary/summary_1.csv",
        f"{HEADER},checkpoint\ngsm8k,1d7fe4,accuracy,gen,40.00,40.00\n",
        "2 columns",
    ),
    "a summary with a cell of a megabyte": (
        "summary/summary_1.csv",
        f"{HEADER}\ngsm8k,1d7fe4,accuracy,gen,{'4' * (1 << 20)}\n",
        "summary",
    ),
    "a summary whose cell is empty": (
        "summary/summary_1.csv",
        f"{HEADER}\ngsm8k,1d7fe4,accuracy,gen,\n",
        "its summary says ''",
    ),
    "a summary whose row is short": (
        "summary/summary_1.csv",
        f"{HEADER}\ngsm8k,1d7fe4,accuracy,gen\n",
        "0 rows",
    ),
    "a summary that says otherwise": (
        "summary/summary_1.csv",
        f"{HEADER}\ngsm8k,1d7fe4,accuracy,gen,62.00\n",
        "62.0 in its summary",
    ),
    "an empty summary": ("summary/summary_1.csv", "", "another form"),
    "no summary": ("summary/summary_1.csv", None, "left 0 summaries"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_incomplete_is_no_result(tmp_path: Path, kind: str) -> None:
    name, text, complaint = BROKEN[kind]
    run = whole_run(tmp_path)
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text)
    with pytest.raises(UnreadResult, match=complaint):
        read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")


def test_judged_items_that_do_not_give_the_metric_are_no_result(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    (run / "results/checkpoint/gsm8k.json").write_text(
        json.dumps({"accuracy": 40.0, "details": judged(5, 5)})
    )
    with pytest.raises(UnreadResult, match="its judged items give 100"):
        read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")


def test_a_result_file_that_is_a_link_is_none(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    path = run / "results/checkpoint/gsm8k.json"
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UnreadResult, match="left no results"):
        read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")


def test_without_judged_items_each_has_the_share_of_its_data_set(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        results={"gsm8k": {"accuracy": 40.0}},
        summary=[HEADER, "gsm8k,1d7fe4,accuracy,gen,40.00"],
        predictions={"gsm8k": 5},
    )
    [read] = read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")
    assert not read.by_item
    assert {result.value for result in read.results} == {0.4}


def test_an_older_result_folder_beside_the_new_one_is_refused(tmp_path: Path) -> None:
    for name in ("20260211_143000", "20260211_143001"):
        (tmp_path / name).mkdir()
    with pytest.raises(UnreadResult, match="2 result folders"):
        newest_run(tmp_path)


def test_data_sets_are_counted_by_the_configuration_not_by_the_results(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/1.py").write_text(
        "datasets = [\n  dict(abbr='a', path='x', infer_cfg=dict(abbr='inner')),\n"
        "  dict(abbr='b'), {'abbr': 'c', 'x-y': 1}]\nmodels = []\n"
    )
    assert configured(tmp_path) == ("a", "b", "c")


@pytest.mark.parametrize("form", ["CRLF", "byte order mark"])
def test_a_summary_that_another_program_saved_again_says_the_same(tmp_path: Path, form: str) -> None:
    run = whole_run(tmp_path)
    path = run / "summary/summary_1.csv"
    text = path.read_text()
    path.write_bytes(text.replace("\n", "\r\n").encode() if form == "CRLF" else text.encode("utf-8-sig"))
    [read] = read_results(run, [Subset("gsm8k", items(5))], metric="accuracy")
    assert sum(result.value for result in read.results) == 2


CONFIGURATIONS = {
    "a data set without a name": "datasets = [\n  dict(abbr='a', path='x'),\n  dict(path='y')]\n",
    "a name that is worked out": "datasets = [dict(abbr='a' + suffix)]\n",
    "a data set that is a name": "datasets = [dict(abbr='a'), other]\n",
    "more data sets from elsewhere": "datasets = [dict(abbr='a'), *others]\n",
    "no list": "models = []\n",
    "two lists": "datasets = [dict(abbr='a')]\ndatasets = [dict(abbr='b')]\n",
    "no Python": "datasets = [\n",
    "a byte that is none": "datasets = [dict(abbr='a')]\0\n",
    "brackets without end": "datasets = " + "[" * 100_000,
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_configuration_whose_data_sets_cannot_be_counted_is_no_result(tmp_path: Path, kind: str) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/1.py").write_text(CONFIGURATIONS[kind])
    with pytest.raises(UnreadResult, match="configuration"):
        configured(tmp_path)
