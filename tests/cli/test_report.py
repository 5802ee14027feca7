"""`posttrain report` as an agent calls it, in a workspace of files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.cli.main import execute

FACTS = Path(__file__).parents[1] / "reports" / "summaries" / "facts" / "main"
SAID = ["--what", "GRPO with a numeric reward", "--why", "the first round"]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace in which one submission was graded and nothing is written yet."""
    folder = tmp_path / "workspace"
    shutil.copytree(FACTS, folder)
    scores = json.loads((folder / "scores.json").read_bytes())
    (folder / "scores.json").write_text(json.dumps(scores[:1]), "utf-8")
    monkeypatch.chdir(folder)
    for name in ("WORKSPACE", "GRADING_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def row(folder: Path) -> dict[str, object]:
    return json.loads((folder / "reports" / "summary.jsonl").read_text("utf-8").splitlines()[-1])


def test_what_and_why_are_enough(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["report", "append", *SAID]) == 0
    assert row(workspace)["score"] == 65.0
    assert row(workspace)["train_type"] == "GRPO"
    assert execute(["report", "check"]) == 0
    assert "ok: 1 iteration" in capsys.readouterr().out


def test_it_works_from_a_folder_below(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace / "code")
    assert execute(["report", "append", *SAID]) == 0
    assert row(workspace)["iteration"] == 1


def test_labels_are_english_when_asked(workspace: Path) -> None:
    assert execute(["report", "append", *SAID, "--lang", "en"]) == 0
    text = (workspace / "reports" / "summary.md").read_text("utf-8")
    assert text.startswith("# Run summary\n\n## Iteration 1 (")
    assert "- **What was done**: GRPO" in text
    assert execute(["report", "check"]) == 0


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_fields_may_come_from_a_file(workspace: Path, form: str) -> None:
    told = {"what": "GRPO", "why": "the first", "config": {"lr": 1e-5, "batch": 2}, "progress": "奖励上升"}
    source = workspace / f"told.{form}"
    if form == "json":
        source.write_text(json.dumps(told), "utf-8")
    else:
        source.write_text(
            "what: GRPO\nwhy: the first\nconfig: lr=1e-5, batch=2\nprogress: 奖励上升\n", "utf-8"
        )
    assert execute(["report", "append", "--from", str(source)]) == 0
    assert "lr=1e-" in (workspace / "reports" / "summary.md").read_text("utf-8")


def test_what_has_a_fault_is_not_appended(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["report", "append", *SAID, "--config", "lr=9e-9"]) == 1
    assert not (workspace / "reports").exists()
    said = capsys.readouterr().err
    assert "rule 3: lr=9e-9: the code says 1e-05. Remedy: read it from the source." in said
    assert execute(["report", "append", *SAID, "--config", "lr=9e-9", "--force"]) == 0
    assert row(workspace)["iteration"] == 1


def test_a_second_round_needs_evidence(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["report", "append", *SAID]) == 0
    again = ["report", "append", "--what", "longer", "--exit-code", "1"]
    assert execute([*again, "--why", "it felt right"]) == 1
    assert "rule 5" in capsys.readouterr().err
    assert execute([*again, "--why", "scores.json: improvement=20.0"]) == 0
    assert row(workspace)["failure_type"] == "code_error_runtime"
    text = (workspace / "reports" / "summary.md").read_text("utf-8")
    assert "torch.OutOfMemoryError: CUDA out of memory" in text
    assert "与 Iteration 1 相同（无变更）" in text


def test_a_repeated_cause_says_what_is_new(workspace: Path) -> None:
    failed = ["report", "append", "--what", "longer", "--why", "agent.log shows it", "--exit-code", "1"]
    assert execute(failed) == 0
    assert execute(failed) == 0
    assert execute([*failed, "--news", "num_generations 8 → 4"]) == 0
    text = (workspace / "reports" / "summary.md").read_text("utf-8")
    assert "无新增" in text
    assert "新增证据: num_generations 8 → 4" in text
    assert execute(["report", "check"]) == 0


def test_a_dry_run_writes_nothing(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["report", "append", *SAID, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["appended"], told["row"]["score"]) == (False, 65.0)
    assert not (workspace / "reports").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--why", "x"], "--what: say it in a sentence"),
        (["--what", "x"], "--why: say it in a sentence"),
        ([*SAID, "--lang", "de"], "--lang: 'de' is not one of 'zh', 'en'"),
        ([*SAID, "--script", "code/none.py"], "--script: code/none.py is no script below code/"),
        ([*SAID, "--key-code", "90-95"], "--key-code: lines 90-95, but the script has"),
        ([*SAID, "--context", "same"], "--context same: no earlier iteration"),
        ([*SAID, "--submission", "7"], "--submission: there is no submission 7"),
        ([*SAID, "--train-type", "RLHF"], "--train-type: "),
        ([*SAID, "--failure-type", "oom"], "--failure-type: "),
        ([*SAID, "--config", "fast"], "--config: write name=value"),
        (["--from", "missing.json"], "--from: missing.json cannot be read"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(
    workspace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert execute(["report", "append", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not (workspace / "reports").exists()


@pytest.mark.parametrize("content", ["[1, 2]", "{", "a: [", "what: x\nwhy: y\nnonsense: 1", "\x00"])
def test_a_file_without_the_fields_is_refused(
    workspace: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (workspace / "told").write_text(content, "utf-8")
    assert execute(["report", "append", "--from", "told"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_outside_of_a_workspace_a_run_has_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKSPACE", raising=False)
    for command in ("append", "check", "metrics"):
        extra = SAID if command == "append" else []
        assert execute(["report", command, *extra]) == 2
        assert "RUN: not inside a workspace" in capsys.readouterr().err


def test_findings_are_one_json_document(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["report", "check", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert {"file", "line", "rule", "rule_says", "message", "remedy"} <= set(told["findings"][0])


def test_a_workspace_elsewhere_is_checked_by_its_folder(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert execute(["report", "append", *SAID]) == 0
    monkeypatch.chdir(workspace.parent)
    assert execute(["report", "check", "./workspace"]) == 0
    capsys.readouterr()


def test_agents_do_not_pay_for_the_whole_package(workspace: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "posttrain", "report", "append", *SAID],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {line.rsplit("|", 1)[-1].strip() for line in shown.stderr.splitlines() if "|" in line}
    assert "posttrain.reports.summaries.compose" in modules
    hidden = {name for name in modules if name.startswith("posttrain.benchmarks")}
    heavy = {
        name for name in modules if name.split(".")[0] in ("fastapi", "uvicorn", "httpx", "torch", "yaml")
    }
    assert not hidden | heavy
