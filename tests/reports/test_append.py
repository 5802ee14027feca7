"""Appending iterations: two files that grow together, whatever is in the texts and whenever a writer dies."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from posttrain.core.errors import UsageError
from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.text import parse
from posttrain.reports.summaries.words import FailureType, TrainType
from posttrain.reports.summary import MARKDOWN, ROWS, Iteration, append_iteration

CODE = "optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)\nloss.backward()\noptimizer.step()"


def iteration(number: int, **changes: object) -> Iteration:
    values: dict[str, object] = {
        "number": number,
        "time": f"2026-03-10 12:{number:02}",
        "duration_s": 30,
        "status": "success",
        "exit_code": 0,
        "score": 60.0 + number,
        "improvement": 10.0 + number,
        "best": 60.0 + number,
        "best_iteration": number,
        "train_type": TrainType.SFT,
        "config": {"lr": "2e-5"},
        "what": "训练",
        "why": "scores.json 显示 improvement 为正",
        "progress": "first_valid_idx=1",
        "key_code": CODE,
        "context": "\n".join(f"line_{n} = {n}" for n in range(20)),
        "context_where": "train.py L1-L20",
    }
    return Iteration.model_validate(values | changes)


NOTHING_KNOWN = Facts(handed_known=False)


def check(folder: Path) -> list[str]:
    result = check_summary((folder / MARKDOWN).read_bytes(), (folder / ROWS).read_bytes(), NOTHING_KNOWN)
    return [f"{finding.line} {finding.rule} {finding.message}" for finding in result.findings]


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_what_is_appended_passes_the_check(tmp_path: Path, lang: str) -> None:
    for number in (1, 2, 3):
        append_iteration(tmp_path, iteration(number), lang="en" if lang == "en" else "zh")
    assert check(tmp_path) == []
    assert len((tmp_path / ROWS).read_text("utf-8").splitlines()) == 3


def test_earlier_bytes_stay_as_they_are(tmp_path: Path) -> None:
    append_iteration(tmp_path, iteration(1))
    before = [(tmp_path / name).read_bytes() for name in (MARKDOWN, ROWS)]
    append_iteration(tmp_path, iteration(2), lang="en")
    after = [(tmp_path / name).read_bytes() for name in (MARKDOWN, ROWS)]
    assert all(new.startswith(old) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "## Iteration 7 (2026-01-01 00:00, 耗时 1s)",
        "a\n- **Score**: 100",
        "```\n# x",
        "| Best: 1 (iter 9)",
        "\x00\ud800",
    ],
)
def test_no_text_passes_for_structure(tmp_path: Path, text: str) -> None:
    append_iteration(tmp_path, iteration(1, what=text, key_code=f"{CODE}\n# ```\n{text}", context=text * 3))
    document = parse((tmp_path / MARKDOWN).read_bytes())
    (section,) = document.sections
    assert (section.number, len(section.bullets)) == (1, 9)


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_writer_that_died_between_the_files_is_made_up_for(tmp_path: Path, kept: int) -> None:
    for number in (1, 2):
        append_iteration(tmp_path, iteration(number))
    rows = (tmp_path / ROWS).read_bytes()
    first = rows.index(b"\n") + 1
    torn = rows[first:][:kept]
    (tmp_path / ROWS).write_bytes(rows[:first] + torn)
    append_iteration(tmp_path, iteration(3))
    assert (tmp_path / ROWS).read_bytes().startswith(rows)
    assert check(tmp_path) == []


def test_a_torn_row_that_is_another_keeps_its_bytes_and_is_named(tmp_path: Path) -> None:
    append_iteration(tmp_path, iteration(1))
    whole = (tmp_path / ROWS).read_bytes()
    (tmp_path / ROWS).write_bytes(whole + b'{"iteration": 9')
    append_iteration(tmp_path, iteration(2))
    assert (tmp_path / ROWS).read_bytes().startswith(whole + b'{"iteration": 9\n')
    assert [line[:3] for line in check(tmp_path)] == ["2 9"]


def test_two_writers_do_not_mix_their_sections(tmp_path: Path) -> None:
    writers = [
        threading.Thread(target=append_iteration, args=(tmp_path, iteration(number)))
        for number in range(1, 9)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    document = parse((tmp_path / MARKDOWN).read_bytes())
    assert sorted(section.number or 0 for section in document.sections) == list(range(1, 9))
    assert all(len(section.bullets) == 9 for section in document.sections)
    assert sorted(
        json.loads(line)["iteration"] for line in (tmp_path / ROWS).read_bytes().splitlines()
    ) == list(range(1, 9))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / MARKDOWN).mkdir()
    with pytest.raises(UsageError, match="not a regular file"):
        append_iteration(tmp_path, iteration(1))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("precious", "utf-8")
    (tmp_path / MARKDOWN).symlink_to(target)
    with pytest.raises(UsageError, match="not a regular file"):
        append_iteration(tmp_path, iteration(1))
    assert target.read_text("utf-8") == "precious"


def test_line_ends_of_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / MARKDOWN).write_bytes("# 运行总结\r\n".encode())
    append_iteration(tmp_path, iteration(1))
    assert (tmp_path / MARKDOWN).read_bytes().startswith("# 运行总结\r\n\n## Iteration 1".encode())
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    "changes",
    [{"score": None}, {"best": None}, {"same_as": 1}, {"score": float("nan")}, {"time": "yesterday"}],
    ids=["score", "best", "same_as", "nan", "time"],
)
def test_an_iteration_that_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        iteration(1, **changes)


def test_a_score_that_does_not_exist_is_no_zero(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("score", "improvement", "best", "best_iteration"))
    failed = {"status": "failure", "exit_code": 1, "failure_type": FailureType.CODE_ERROR_RUNTIME}
    append_iteration(tmp_path, iteration(1, **nothing, **failed))
    assert "**Score**: N/A | Improvement: N/A | Best: N/A" in (tmp_path / MARKDOWN).read_text("utf-8")
    row = json.loads((tmp_path / ROWS).read_bytes())
    assert (row["score"], row["improvement"]) == (None, None)


@pytest.mark.parametrize("kind", ["linked folder", "a file for a folder", "huge"])
def test_nothing_is_appended_to_what_is_no_report(tmp_path: Path, kind: str) -> None:
    folder, elsewhere = tmp_path / "reports", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "linked folder":
        folder.symlink_to(elsewhere)
    elif kind == "huge":
        folder.mkdir()
        with (folder / MARKDOWN).open("wb") as file:
            file.truncate(1 << 30)
    else:
        folder.write_text("x")
    with pytest.raises(UsageError):
        append_iteration(folder, iteration(1))
    assert not list(elsewhere.iterdir())
