"""`posttrain results` on a lab home with runs in it: means, intervals, lifts, filters, forms."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from builders import grade, improvement, plan, record, result, score
from posttrain.cli.main import execute
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import FormatControl, RunPlan, RunRecord, Status
from posttrain.core.scores import Improvement
from posttrain.grading.ledger import Ledger
from posttrain.infra.files import write_json
from posttrain.reports.results import record_result, result_row
from posttrain.runs.history import Word

ANCESTOR = (
    "run_id,timestamp,task,agent,driver_model,base_model,baseline,best_score,improvement,submissions,"
    "duration_s,success,workspace\n"
)


@pytest.fixture
def home(lab: LabPaths, monkeypatch: pytest.MonkeyPatch) -> LabPaths:
    monkeypatch.setenv("POSTTRAIN_HOME", str(lab.home))
    monkeypatch.chdir(lab.home)
    return lab


def write_run(lab: LabPaths, made: RunPlan, happened: RunRecord) -> RunPaths:
    """The files of a run that the command reads."""
    paths = lab.run(made.request.task, made.run_id)
    paths.root.mkdir(parents=True)
    write_json(paths.request, made.request)
    write_json(paths.plan, made)
    write_json(paths.record, happened)
    workspace = paths.workspace.root
    row = result_row(made, happened, [grade(1, 60.0, at=9)], driver="unknown", workspace=workspace)
    record_result(lab.results_csv, row)
    return paths


def improved(value: float) -> Improvement:
    return Improvement(value=value, ci95=(value - 4, value + 4), n=500, method="bonett-price")


def run(lab: LabPaths, agent: str, run_id: str, value: float | None, **changes: Any) -> RunPaths:
    """A run of an agent with an improvement; `changes` of the request, or of the record in `record`."""
    told = changes.pop("record", {})
    if value is None:
        told = {"result": None, "status": Status.NO_SUBMISSION} | told
    else:
        told = {"result": result(improvement=improved(value))} | told
    return write_run(lab, plan(run_id, agent=agent, **changes), record(run_id, **told))


def test_runs_of_an_agent_have_a_mean_and_a_t_interval(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, value in enumerate((19.6, 19.6, 17.6)):
        run(home, "recipe", f"r{seed}", value, seed=seed)
    assert execute(["results"]) == 0
    assert "+18.9 [+16.1, +21.8]" in capsys.readouterr().out
    assert execute(["results", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert (group["runs"], group["seeds"], group["item_interval"]) == (3, [0, 1, 2], None)
    assert group["interval"] == pytest.approx([16.065, 21.802], abs=1e-3)


def test_one_run_says_so_and_shows_the_interval_over_items(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run(home, "recipe", "a", 20.8)
    assert execute(["results"]) == 0
    assert "+20.8 (1 run, items [+16.8, +24.8])" in capsys.readouterr().out


def test_the_lift_is_over_the_best_control_and_never_over_oneself(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    for agent, gains in {"mine": (12.0, 10.0), "noop": (0.0,), "recipe": (8.0, 4.0)}.items():
        for seed, value in enumerate(gains):
            run(home, agent, f"{agent}{seed}", value, seed=seed)
    assert execute(["results", "--json"]) == 0
    found = {group["agent"]: group for group in json.loads(capsys.readouterr().out)}
    assert list(found) == ["mine", "recipe", "noop"]
    assert found["mine"]["control"] == {"agent": "recipe", "improvement": 6.0, "runs": 2}
    assert found["mine"]["lift"] == 5.0
    low, high = found["mine"]["lift_interval"]
    assert low < 5.0 < high
    assert found["recipe"]["control"]["agent"] == "noop"
    assert found["recipe"]["lift_interval"] is None
    assert found["noop"]["control"]["agent"] == "recipe"
    assert execute(["results", "--runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["lift"] for row in rows if row["agent"] == "mine"] == [6.0, 4.0]


@pytest.mark.parametrize(
    "other",
    [
        {"timeout_s": 60.0},
        {"protocol": "open"},
        {"model": "another"},
        {"task": "arithmetic"},
        {"record": {"result": result(score=score(65.4, n=100), improvement=improvement(5.0, n=100))}},
    ],
    ids=["budget", "protocol", "model", "task", "n"],
)
def test_runs_of_another_setting_are_neither_averaged_nor_compared(
    home: LabPaths, capsys: pytest.CaptureFixture[str], other: dict[str, Any]
) -> None:
    run(home, "mine", "a", 12.0)
    run(home, "mine", "b", 2.0, **other)
    run(home, "noop", "c", 0.0, **other)
    assert execute(["results", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)
    assert sorted(group["runs"] for group in groups) == [1, 1, 1]
    alone = next(group for group in groups if group["run_ids"] == ["a"])
    assert (alone["improvement"], alone["lift"]) == (12.0, None)


def test_runs_on_other_items_of_the_same_number_are_apart(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run(home, "mine", "a", 12.0)
    made = plan("b", agent="mine")
    made = made.model_copy(update={"task": made.task.model_copy(update={"test": ("e", "f")})})
    write_run(home, made, record("b"))
    assert execute(["results", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_a_dry_run_is_no_control_of_a_real_one(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    run(home, "mine", "a", 12.0)
    made = plan("b", agent="noop")
    numeric = made.numeric.model_copy(update={"engine": "scripted"})
    write_run(home, made.model_copy(update={"numeric": numeric}), record("b"))
    assert execute(["results", "--json"]) == 0
    assert [group["lift"] for group in json.loads(capsys.readouterr().out)] == [None, None]


def test_what_was_not_scored_is_counted_apart_and_never_a_zero(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run(home, "recipe", "a", 10.0, seed=0)
    run(home, "recipe", "b", 14.0, seed=1)
    run(home, "recipe", "c", None, seed=2)
    assert execute(["results", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert (group["runs"], group["not_scored"], group["improvement"]) == (3, 1, 12.0)
    assert group["statuses"] == {"completed": 2, "no_submission": 1}
    assert execute(["results"]) == 0
    assert "3, 1 not scored" in capsys.readouterr().out


def test_nothing_scored_at_all_is_not_scored(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    run(home, "recipe", "a", None)
    assert execute(["results", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert (group["improvement"], group["interval"], group["lift"]) == (None, None, None)
    assert execute(["results"]) == 0
    assert "not scored" in capsys.readouterr().out


def test_a_rejected_run_compares_with_nothing(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    run(home, "mine", "a", 12.0)
    paths = run(home, "mine", "b", 90.0)
    with Ledger(paths.ledger, torn=paths.torn) as ledger:
        ledger.append("verdict", Word(accepted=False, why="\x1b[2Jtest rows", by="op"))
    assert execute(["results", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert (group["improvement"], group["rejected"], group["not_scored"]) == (12.0, 1, 1)
    assert execute(["results", "--runs"]) == 0
    table = capsys.readouterr().out
    assert "rejected: �[2Jtest rows" in table
    assert "+90.0" not in table


def test_marks_verdicts_over_fit_and_the_prompt_alone_are_summed_up(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    prompted = FormatControl(
        task="boolean:4shot", split="test", score=score(52.0), improvement=improved(-8.0)
    )
    told = {"verdicts": {"graded": 2, "rejected": 1, "error": 0}, "format_control": prompted}
    run(home, "recipe", "a", 10.0, seed=0, record=told | {"marks": ("network: host",)})
    run(home, "recipe", "b", 12.0, seed=0, record=told | {"marks": ()})
    assert execute(["results"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert "4 graded, 2 rejected" in line
    assert "-8.0" in line
    assert "+2.2 [+2.2, +2.2]" in line
    assert line.endswith("network: host (1), same seed again (1)")


def test_filters_choose_the_runs(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    run(home, "mine", "a", 12.0)
    run(home, "noop", "b", 0.0)
    run(home, "mine", "c", 9.0, task="gsm8k:4shot", model="org/m", timeout_s=60.0)
    run(home, "mine", "d", None)

    def ids(*options: str) -> set[str]:
        assert execute(["results", "--runs", "--json", *options]) == 0
        return {row["run_id"] for row in json.loads(capsys.readouterr().out)}

    assert ids("--task", "gsm8k*") == {"c"}
    assert ids("--task", "boolean", "--task", "gsm8k:4shot") == {"a", "b", "c", "d"}
    assert ids("--model", "org/*") == {"c"}
    assert ids("--agent", "noop") == {"b"}
    assert ids("--status", "no_submission") == {"d"}
    assert ids("--budget", "1m") == {"c"}
    assert ids("--protocol", "open") == set()
    assert ids("--since", "2026-02-11") == {"a", "b", "c", "d"}
    assert ids("--until", "2026-02-10") == set()
    assert ids("--since", "2126-01-01 20:00") == set()
    assert execute(["results", "--agent", "nobody"]) == 0
    assert capsys.readouterr().out == "none of 4 runs is asked for\n"


def test_a_filter_by_agent_leaves_the_control_to_compare_with(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run(home, "mine", "a", 12.0)
    run(home, "noop", "b", 0.0)
    assert execute(["results", "--agent", "mine"]) == 0
    table = capsys.readouterr().out
    assert "+12.0 over noop" in table
    assert len(table.splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--since", "yesterday"], "--since"),
        (["--until", "2026-13-01"], "--until"),
        (["--since", "99999999d"], "--since"),
        (["--budget", "ever"], "--budget"),
        (["--status", "fine"], "--status"),
        (["--protocol", "closed"], "--protocol"),
        (["--json", "--csv"], "--csv"),
        (["--file", "/nowhere.csv"], "--file"),
    ],
)
def test_a_filter_that_means_nothing_is_wrong_use(
    home: LabPaths, capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    assert execute(["results", *options]) == 2
    captured = capsys.readouterr()
    assert named in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_an_empty_lab_has_no_results(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["results"]) == 0
    assert capsys.readouterr().out == "no results yet\n"
    assert execute(["results", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_the_table_is_there_as_csv_without_formulas(
    home: LabPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run(home, "mine", "a", 12.0, seed=0)
    run(home, "mine", "b", 10.0, seed=1)
    run(home, "noop", "c", 0.0)
    with home.results_csv.open("a", encoding="utf-8") as file:
        file.write('x,2026-02-11 14:30:00,"=HYPERLINK(""x"")",a,,m' + "," * 23 + "\n")
    assert execute(["results", "--csv"]) == 0
    mine, noop, odd = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (mine["agent"], mine["improvement"], mine["ci_over"], mine["lift"]) == (
        "mine",
        "11.00",
        "runs",
        "11.00",
    )
    assert (noop["control"], noop["ci_over"], noop["run_ids"]) == ("", "items", "c")
    assert odd["task"] == '\'=HYPERLINK("x")'
    assert execute(["results", "--runs", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["run_id"], row["control"], row["lift"]) for row in rows][:2] == [
        ("a", "noop", "12.00"),
        ("b", "noop", "10.00"),
    ]


def ancestor_row(run_id: str, numbers: str, *, agent: str = "openhands,gpt-5.2") -> str:
    """Score, improvement and submissions as given; a line as a program on Windows leaves it."""
    return f"{run_id},2026-02-11 14:30:00,gsm8k,{agent},Qwen/Qwen2.5-1.5B,21.61,{numbers},3600,True,w\r\n"


def test_a_file_of_the_ancestor_is_read_and_marked(
    home: LabPaths, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = tmp_path / "old.csv"
    old.write_text(
        "\ufeff"
        + ANCESTOR
        + ancestor_row("20260211T143000", "22.37,0.76,3")
        + ancestor_row("20260212T143000", "23.12,1.51,9")
        + ancestor_row("20260213T143000", "0.0,-21.61,0")
        + "cut\n"
        + "x" * 200_000
        + "\n"
        + ancestor_row("20260214T143000", "21.61,0.00,1", agent="noop,"),
        "utf-8",
    )
    run(home, "mine", "a", 12.0)
    assert execute(["results", "--file", str(old), "--file", str(old), "--file", "results.csv"]) == 0
    captured = capsys.readouterr()
    assert "line 5" in captured.err
    hands, noop, mine = captured.out.splitlines()[1:]
    assert "openhands (gpt-5.2)" in hands
    assert "3, 1 not scored" in hands
    assert "+1.1 [-3.6, +5.9]" in hands
    assert "+1.1 over noop" in hands
    assert hands.endswith("AutoRL-Bench: the best test score")
    assert "noop *" in noop
    assert "+12.0" in mine


def test_a_damaged_run_or_file_hides_no_other(home: LabPaths, capsys: pytest.CaptureFixture[str]) -> None:
    run(home, "mine", "a", 12.0)
    broken = run(home, "mine", "b", 10.0)
    for path in (broken.request, broken.plan, broken.record, broken.ledger):
        path.write_bytes(b"\xff{")
    with home.results_csv.open("ab") as file:
        file.write(b"\x00\xff\n")
    assert execute(["results", "--json"]) == 0
    captured = capsys.readouterr()
    assert sorted(group["improvement"] for group in json.loads(captured.out)) == [10.0, 12.0]
    assert "line 4" in captured.err


def test_a_run_with_several_rows_counts_once_by_its_last(
    home: LabPaths, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = tmp_path / "old.csv"
    rows = [ancestor_row("20260211T143000", f"{21 + gain},{gain},3") for gain in (1.0, 5.0)]
    old.write_text(ANCESTOR + "".join(rows), "utf-8")
    assert execute(["results", "--file", str(old), "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert (group["runs"], group["improvement"], group["interval"]) == (1, 5.0, None)
