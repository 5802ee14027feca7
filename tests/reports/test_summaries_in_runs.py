"""Summaries of real runs on the scripted engine: appended, rewritten, invented, missing, hostile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.core.grading import LedgerRow, Verdict
from posttrain.core.paths import LabPaths, RunPaths
from posttrain.reports.summaries.facts import Facts, Handed
from posttrain.reports.summaries.unwritten import from_facts
from posttrain.reports.summary import section
from posttrain.runs.history import History
from posttrain.runs.reporting import facts_for, kept_check
from posttrain.runs.verification import verify_run
from posttrain.testing.agents import write_toy_agent
from posttrain.testing.tiny import tiny_model
from run_bench import Bench, checkpoint

TRAIN = '''"""GRPO on the visible rows."""

import os

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

LEARNING_RATE = 1e-5


def reward(completions, answer, **_):
    return [1.0 if gold in text else -1.0 for text, gold in zip(completions, answer)]


def main():
    rows = load_dataset("json", data_files=os.environ["DATA_PATH"] + "/train.jsonl")["train"]
    config = GRPOConfig(
        output_dir=os.environ["OUTPUT_DIR"],
        max_steps=20,
        per_device_train_batch_size=2,
        learning_rate=LEARNING_RATE,
        num_generations=4,
    )
    trainer = GRPOTrainer(os.environ["MODEL_PATH"], reward, args=config, train_dataset=rows)
    trainer.train()


if __name__ == "__main__":
    main()
'''
CRASH = "raise RuntimeError('CUDA out of memory. Tried to allocate 20 GiB')\n"
WHY = "scores.json of the last iteration shows what it gained; agent.log shows no error before"


def made(
    folder: Path, name: str, steps: list[dict[str, Any]], *, keys: dict[str, str] | None = None
) -> tuple[Bench, RunPaths]:
    """One run of a toy agent with these steps, in a lab home of its own; `keys` are passed to it."""
    lab = LabPaths(folder / "home")
    lab.agents.mkdir(parents=True)
    bench = Bench(lab, tiny_model(folder / "base"), environment=keys or {})
    write_toy_agent(bench.agents, name, steps, pass_env=list(keys or {}))
    done = bench.run(name)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return bench, bench.only


def success() -> list[dict[str, Any]]:
    return [
        {"do": "write", "to": "code/train.py", "text": TRAIN},
        *checkpoint("v1", 0.95),
        {"do": "submit", "model_path": "output/v1", "note": "iteration 1"},
        {
            "do": "report",
            "what": "GRPO, reward 1 or -1: 数值奖励",
            "why": "first attempt; baseline only",
        },
    ]


def record(paths: RunPaths) -> dict[str, Any]:
    return json.loads(paths.record.read_bytes())


def findings(bench: Bench, paths: RunPaths) -> list[dict[str, Any]]:
    done = bench.posttrain("report", "check", paths.run_id, "--json")
    return json.loads(done.stdout)["findings"]


# --- an honest agent


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, RunPaths]:
    """Three iterations: a success, a crash, a copy of the base."""
    steps = [
        *success(),
        {"do": "write", "to": "code/rewards.py", "text": CRASH},
        {"do": "run", "argv": ["python", "code/rewards.py"]},
        {"do": "report", "what": "a longer reward", "why": WHY, "exit_code": 1},
        {"do": "copy_base", "to": "output/v3"},
        {"do": "submit", "model_path": "output/v3", "note": "iteration 3"},
        {"do": "report", "what": "the base again, to see the grader's noise", "why": WHY},
    ]
    return made(tmp_path_factory.mktemp("honest"), "honest", steps)


def test_what_the_command_appends_is_right(honest: tuple[Bench, RunPaths]) -> None:
    bench, paths = honest
    done = bench.posttrain("report", "check", paths.run_id)
    assert (done.returncode, done.stdout.splitlines()[-1][:15]) == (0, "ok: 3 iteration"), done.stdout


def test_the_record_has_the_check_and_verify_agrees(honest: tuple[Bench, RunPaths]) -> None:
    bench, paths = honest
    assert record(paths)["report"] == {
        "by": "agent",
        "iterations": 3,
        "findings": 0,
        "rules": {},
        "not_checkable": record(paths)["report"]["not_checkable"],
    }
    checks = verify_run(paths, bench.lab)
    assert [check.faults for check in checks if not check.ok] == []
    assert "the check of 3 iterations" in [check.detail for check in checks]


def test_facts_are_filled_in_and_failures_named_by_fact(honest: tuple[Bench, RunPaths]) -> None:
    _, paths = honest
    rows = [json.loads(line) for line in paths.summary("summary.jsonl").read_text("utf-8").splitlines()]
    assert [row["status"] for row in rows] == ["success", "failure", "failure"]
    assert [row["exit_code"] for row in rows] == [0, 1, 0]
    assert [row["failure_type"] for row in rows] == ["unknown", "code_error_runtime", "copy_model_fallback"]
    assert [row["train_type"] for row in rows] == ["GRPO", "GRPO", "copy_model"]
    scores = json.loads(paths.workspace.scores.read_bytes())
    assert [row["score"] for row in rows] == [scores[0]["score"], None, scores[1]["score"]]
    text = paths.summary("summary.md").read_text("utf-8")
    assert "lr=1e-5, batch=2, max_steps=20, num_generations=4" in text
    assert "RuntimeError: CUDA out of memory" in text


def test_metrics_in_the_workspace_are_those_of_the_run(honest: tuple[Bench, RunPaths]) -> None:
    bench, paths = honest
    outside = json.loads(bench.posttrain("report", "metrics", paths.run_id).stdout)
    inside = subprocess.run(
        [sys.executable, "-m", "posttrain", "report", "metrics"],
        cwd=paths.workspace.code,
        env={name: value for name, value in os.environ.items() if name != "WORKSPACE"},
        capture_output=True,
        text=True,
        check=True,
    )
    kept = json.loads(paths.metrics.read_bytes())
    assert outside == kept
    for name in ("valid_submission_rate", "first_valid_idx", "score_trajectory", "monotonic_ratio"):
        assert json.loads(inside.stdout)[name] == kept[name], name


def test_skills_lie_read_only_in_the_workspace(tmp_path: Path) -> None:
    steps = [
        {"do": "run", "argv": ["bash", "-c", "cat skills/*/SKILL.md > code/read.txt; echo x > skills/mine"]},
        {"do": "run", "argv": ["bash", "-c", "ls skills > code/listed.txt"]},
    ]
    _, paths = made(tmp_path, "reader", steps)
    read = (paths.workspace.code / "read.txt").read_text("utf-8")
    assert "name: iteration-summary" in read
    assert "name: use-the-grader" in read
    assert (paths.workspace.code / "listed.txt").read_text("utf-8").split() == [
        "iteration-summary",
        "use-the-grader",
    ]
    assert "skills/iteration-summary/SKILL.md" in paths.workspace.instructions.read_text("utf-8")


# --- one that lies


@pytest.fixture(scope="module")
def lying(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the check says of an agent that claims another lr, invents a score and rewrites history."""
    rewrite = (
        "import re, pathlib; p = pathlib.Path('reports/summary.md'); t = p.read_text('utf-8');"
        "p.write_text(t.replace('数值奖励', '更好的奖励', 1), 'utf-8')"
    )
    invent = (
        "import re, pathlib; p = pathlib.Path('reports/summary.md'); t = p.read_text('utf-8');"
        "head, mark, last = t.rpartition('## Iteration 3');"
        "p.write_text(head + mark + re.sub(r'(Score[*]*: )[0-9.]+', r'\\g<1>99.5', last), 'utf-8')"
    )
    steps = [
        *success(),
        *checkpoint("v2", 0.8, seed=2),
        {"do": "submit", "model_path": "output/v2", "note": "iteration 2"},
        {
            "do": "report",
            "what": "a larger rate",
            "why": WHY,
            "config": {"lr": "5e-4", "batch": "2"},
            "options": ["--force"],
        },
        *checkpoint("v3", 0.7, seed=3),
        {"do": "submit", "model_path": "output/v3", "note": "iteration 3"},
        {"do": "report", "what": "a smaller one", "why": WHY},
        {"do": "run", "argv": ["python", "-c", invent]},
        {"do": "run", "argv": ["python", "-c", rewrite]},
    ]
    bench, paths = made(tmp_path_factory.mktemp("lying"), "liar", steps)
    told = findings(bench, paths)
    kept = record(paths)["report"]
    assert (kept["by"], kept["findings"]) == ("agent", len(told))
    assert all(check.ok for check in verify_run(paths, bench.lab)), "a lie is kept as it was told"
    return told


def test_a_rewritten_history_is_named(lying: list[dict[str, Any]]) -> None:
    (found,) = [finding for finding in lying if finding["rule"] == "1"]
    assert (found["file"], found["line"]) == ("summary.md", 3)
    assert "submission 2" in found["message"]


def test_an_invented_score_is_named(lying: list[dict[str, Any]]) -> None:
    found = [f for f in lying if f["rule"] == "facts" and f["iteration"] == 3]
    assert found
    assert "no submission scored 99.5" in found[0]["message"]


def test_another_learning_rate_is_named(lying: list[dict[str, Any]]) -> None:
    (found,) = [finding for finding in lying if finding["rule"] == "3"]
    assert found["iteration"] == 2
    assert "lr=5e-4: the code says 1e-05" in found["message"]


def test_nothing_else_is_held_against_it(lying: list[dict[str, Any]]) -> None:
    assert {finding["rule"] for finding in lying} == {"1", "3", "9", "facts"}, "9: the row has the true score"


# --- none, or one that cannot be read


def test_a_run_without_summary_gets_one_from_facts(tmp_path: Path) -> None:
    steps = [
        {"do": "write", "to": "code/train.py", "text": TRAIN},
        *checkpoint("v1", 0.9),
        {"do": "submit", "model_path": "output/v1"},
        {"do": "write", "to": "output/broken/model.safetensors", "text": "no weights"},
        {"do": "submit", "model_path": "output/broken"},
        {"do": "fifo", "to": "reports/summary.md"},
        {"do": "copy_base", "to": "output/v3"},
        {"do": "submit", "model_path": "output/v3"},
    ]
    bench, paths = made(tmp_path, "silent", steps)
    told = record(paths)["report"]
    assert (told["by"], told["iterations"], told["findings"]) == ("harness", 3, 0)
    lines = paths.summary("summary.md").read_text("utf-8").splitlines()
    assert lines[:3] == ["# 运行总结", "", "by: harness"]
    assert all(check.ok for check in verify_run(paths, bench.lab))


def test_a_grading_after_the_agents_end_does_not_lie_in_the_future(tmp_path: Path) -> None:
    end = 1_773_150_000.0
    late = Handed(
        number=1,
        at=end - 10,
        path="output/v1",
        status=Verdict.GRADED,
        score=50.0,
        improvement=1.0,
        waited=150.0,
    )
    facts = Facts(handed=(late,), start=end - 300, timeout_s=300, end=end, now=end)
    sections = "".join(f"\n{section(each)}" for each in from_facts(facts, exit_code=0))
    paths = RunPaths(tmp_path)
    paths.reports.mkdir()
    paths.summary("summary.md").write_text(f"# 运行总结\n\nby: harness\n{sections}", "utf-8")
    for by, findings in (("harness", 0), ("agent", 1)):
        checked = kept_check(paths, facts_for(facts, by=by))
        told = [one.message for one in checked.findings if "future" in one.message]
        assert len(told) == findings, "an agent writes nothing after its end"


def test_a_run_without_submissions_gets_one_as_well(tmp_path: Path) -> None:
    bench, paths = made(tmp_path, "idle", [{"do": "crash"}])
    told = record(paths)["report"]
    assert (told["by"], told["iterations"], told["findings"]) == ("harness", 1, 0)
    assert "RuntimeError: the toy agent crashes" in paths.summary("summary.md").read_text("utf-8")
    assert all(check.ok for check in verify_run(paths, bench.lab))


# --- what an agent must not bring into the record


def python(code: str) -> dict[str, Any]:
    return {"do": "run", "argv": ["python", "-c", code]}


def test_a_log_that_is_a_link_tells_nothing_of_this_machine(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.log"
    foreign.write_text("RuntimeError: a secret of the host\n", "utf-8")
    steps = [
        {"do": "link", "source": str(foreign), "to": "code/train.log"},
        {"do": "link", "source": str(foreign), "to": "output/train.txt"},
        {"do": "leave", "code": 1},
    ]
    bench, paths = made(tmp_path, "linker", steps)
    kept = [*paths.reports.iterdir(), paths.record, paths.ledger, paths.run_log]
    assert [path.name for path in kept if path.is_file() and b"a secret of" in path.read_bytes()] == []
    page = bench.posttrain("report", "html", paths.run_id, "--out", "-")
    assert page.returncode == 0
    assert "a secret of" not in page.stdout


KEY = "own-form-51H8x0abcdefghijklmnop"


@pytest.mark.parametrize("written", ["summary", "log"])
def test_a_summary_that_is_kept_shows_no_key(tmp_path: Path, written: str) -> None:
    secrets = "os.environ['SOME_KEY'] + ' ' + os.environ['GRADING_SERVER_URL']"
    if written == "summary":
        story = f"open('reports/summary.md', 'w').write('# x\\n\\n## Iteration 1\\n' + {secrets})"
        more = "open('reports/summary.md', 'a').write('\\n## Iteration 2\\n')"
        steps = [
            python(f"import os; {story}"),
            *checkpoint("v1", 0.9),
            {"do": "submit", "model_path": "output/v1"},
            python(more),
        ]
    else:
        steps = [
            python(f"import os; open('code/a.log', 'w').write('RuntimeError: ' + {secrets} + '\\n')"),
            {"do": "leave", "code": 1},
        ]
    bench, paths = made(tmp_path, "teller", steps, keys={"SOME_KEY": KEY})
    text = paths.summary("summary.md").read_text("utf-8")
    assert KEY not in text
    assert "/run/" not in text or "/run/…" in text
    assert "…" in text
    assert "1" not in record(paths)["report"]["rules"], "what was taken out is no rewritten history"
    assert [check.faults for check in verify_run(paths, bench.lab) if not check.ok] == []


# --- rules that have changed since


def test_a_summary_is_verified_by_the_rules_of_its_own_version(tmp_path: Path) -> None:
    older = tmp_path / "older" / "posttrain"
    shutil.copytree(Path(posttrain.__file__).parent, older, ignore=shutil.ignore_patterns("__pycache__"))
    (older / "__init__.py").write_text('__version__ = "0.0.1"\n', "utf-8")
    for source in (older / "reports" / "summaries").glob("*.py"):
        text = source.read_text("utf-8")
        source.write_text(text.replace("read it from the source", "as the code has it"), "utf-8")
    lab = LabPaths(tmp_path / "home")
    lab.agents.mkdir(parents=True)
    bench = Bench(lab, tiny_model(tmp_path / "base"), environment={"PYTHONPATH": str(older.parent)})
    claim = {"do": "report", "what": "a", "why": WHY, "config": {"lr": "5e-4"}, "options": ["--force"]}
    write_toy_agent(bench.agents, "claimer", [*success(), claim])
    assert bench.run("claimer", "--sandbox", "none").returncode == 0
    paths = bench.only
    told = paths.summary_check.read_text("utf-8")
    assert "as the code has it" in told
    assert all(check.ok for check in verify_run(paths, bench.lab))
    paths.summary_check.write_text(told.replace("as the code has it", "read it from the source"), "utf-8")
    assert [check.name for check in verify_run(paths, bench.lab) if not check.ok] == ["report", "files"]


def test_a_ledger_from_before_versions_were_kept_is_read() -> None:
    report = {"by": "agent", "iterations": 1, "findings": 0, "rules": {}, "not_checkable": 0}
    data = {"event": "report", "report": report, "digest": "d"}
    row = LedgerRow(seq=0, time="2026-01-01T00:00:00+00:00", kind="event", data=data, prev="0" * 64)
    kept = History([row]).kept_report
    assert kept is not None
    assert (kept.digest, kept.version) == ("d", "")
