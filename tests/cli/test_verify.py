"""`verify` on a real closed run: sound as it was left, and every later edit named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths, RunPaths

Finished = tuple[LabPaths, RunPaths]


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text("utf-8")
    after = change(before)
    assert after != before
    path.chmod(0o644)
    path.write_text(after, "utf-8")


def flip_first_item(text: str) -> str:
    first, rest = text.split("\n", 1)
    record = json.loads(first)
    record["result"]["value"] = 1.0 - record["result"]["value"]
    return json.dumps(record) + "\n" + rest


def test_a_run_as_it_was_left_is_sound(finished: Finished, cli) -> None:
    _, paths = finished
    shown = cli("verify", paths.run_id, "--json")
    report = json.loads(shown.stdout)
    assert shown.returncode == 0, report
    assert report["ok"] is True
    assert [check["name"] for check in report["checks"]] == [
        "chain",
        "baseline",
        "control",
        "grades",
        "result",
        "exports",
        "record",
        "report",
        "clock",
        "results",
        "files",
    ]


def test_the_head_kept_elsewhere_is_compared(finished: Finished, cli) -> None:
    _, paths = finished
    head = json.loads(paths.record.read_bytes())["ledger_head"]
    assert cli("verify", paths.run_id, "--head", head).returncode == 0
    other = cli("verify", paths.run_id, "--head", "0" * 64)
    assert other.returncode == 1
    assert "expected 0000" in other.stdout


EDITS = {
    "the ledger": (lambda p, lab: p.ledger, lambda t: t.replace('"graded"', '"rejected"', 1), "chain"),
    "a grade": (
        lambda p, lab: p.grading_of(1) / "grade.json",
        lambda t: t.replace("graded", "error"),
        "exports",
    ),
    "an item": (lambda p, lab: p.grading_of(2) / "items.jsonl", flip_first_item, "grades"),
    "a test item": (lambda p, lab: p.grading_of("final-test") / "items.jsonl", flip_first_item, "result"),
    "the record": (
        lambda p, lab: p.record,
        lambda t: t.replace('"agent_exit": 0', '"agent_exit": 1'),
        "record",
    ),
    "the plan": (lambda p, lab: p.plan, lambda t: t.replace('"seed": 0', '"seed": 1'), "record"),
    "the metrics": (
        lambda p, lab: p.metrics,
        lambda t: t.replace('"repeated": 0', '"repeated": 1'),
        "exports",
    ),
    "the scores": (
        lambda p, lab: p.workspace.scores,
        lambda t: t.replace('"score"', '"other"', 1),
        "exports",
    ),
    "the table": (lambda p, lab: lab.results_csv, lambda t: t.replace("completed", "error"), "results"),
    "the agent's log": (lambda p, lab: p.agent_log, lambda t: t + "one more line\n", "files"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_is_named(finished: Finished, cli, what: str) -> None:
    lab, paths = finished
    place, change, check = EDITS[what]
    edit(place(paths, lab), change)
    shown = cli("verify", paths.run_id, "--json")
    assert shown.returncode == 1, shown.stdout + shown.stderr
    faulty = [found["name"] for found in json.loads(shown.stdout)["checks"] if found["faults"]]
    assert check in faulty


def test_a_run_without_a_ledger_is_named(finished: Finished, cli) -> None:
    _, paths = finished
    paths.ledger.unlink()
    shown = cli("verify", paths.run_id)
    assert shown.returncode == 1
    assert "no ledger" in shown.stdout


def test_show_and_results_read_a_real_run(finished: Finished, cli) -> None:
    _, paths = finished
    page = cli("show", paths.run_id).stdout
    assert "submission 2, best on validation" in page
    assert "output/v2" in page
    (row,) = json.loads(cli("results", "--runs", "--json").stdout)
    assert row["run_id"] == paths.run_id
    assert row["improvement"] > 10
    assert "agent starts" in cli("logs", paths.run_id).stdout
