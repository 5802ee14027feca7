"""Command-line agents through real runs: a stand-in for the tool, and the scripted engine."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from posttrain.core.runs import RunRecord
from posttrain.testing.stand_in import calls, write_stand_in
from run_bench import Bench

KEYS = {
    "claude": "ANTHROPIC_API_KEY",
    "codex": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "opencode": "OPENAI_API_KEY",
    "openhands": "OPENAI_API_KEY",
}
SECRET = "sk-very-secret-0123456789"
WORK = {"say": "好的, I begin.", "submit": "output/v1", "summary": "# 运行总结\n"}
first_fast = pytest.mark.parametrize(
    "tool", ["claude", *(pytest.param(tool, marks=pytest.mark.slow) for tool in KEYS if tool != "claude")]
)


def prepared(bench: Bench, tool: str, *turns: dict[str, object], key: bool = True) -> None:
    """A bench whose operator has the tool and all keys."""
    folder = bench.lab.home.parent / "tools"
    program = write_stand_in(folder, tool, turns)
    bench.environment |= {"PATH": os.pathsep.join([str(folder), os.environ["PATH"]])}
    bench.environment |= {name: f"{SECRET}-{name}" if key else "" for name in KEYS.values()}
    bench.environment |= {"HF_TOKEN": "hf_secret", "CLAUDE_BIN": ""}
    if tool == "openhands":
        bench.environment["OPENHANDS_PYTHON"] = str(program)


def record(bench: Bench) -> RunRecord:
    return RunRecord.model_validate_json(bench.only.record.read_bytes())


@first_fast
def test_it_works_submits_reports_and_is_prompted_while_time_is_left(bench: Bench, tool: str) -> None:
    prepared(bench, tool, WORK, {"shell": "timer", "exit": 0}, {"say": "nothing more"})
    ended = bench.run(tool, "--timeout", "120")
    assert ended.returncode == 0, ended.stderr
    assert record(bench).status == "completed"
    assert record(bench).agent_exit == 0
    assert [row["status"] for row in json.loads(bench.only.workspace.scores.read_bytes())] == ["graded"]
    workspace = bench.only.workspace.root
    made = calls(workspace)
    assert len(made) >= 3
    assert made[0]["stdin"].startswith("You improve the small language model")
    assert "1 submission(s) so far, 1 graded" in made[1]["stdin"]
    others = {name for name in KEYS.values() if name != KEYS[tool]} | {"HF_TOKEN"}
    assert made[0]["env"][KEYS[tool]].startswith(SECRET)
    assert not others & set(made[0]["env"])
    assert (bench.only.reports / "summary.md").read_text("utf-8").startswith("# 运行总结")
    log = bench.only.agent_log.read_text("utf-8")
    assert "好的, I begin." in log
    assert " left (" in log  # what `timer` printed
    trace = [json.loads(line) for line in (workspace / "trace.jsonl").read_text("utf-8").splitlines()]
    assert [line["ended"]["exit_code"] for line in trace if "ended" in line] == [0] * len(made)


@pytest.mark.slow
@pytest.mark.parametrize("tool", KEYS)
def test_a_crash_is_the_agents_failure_with_the_tools_exit_code(bench: Bench, tool: str) -> None:
    prepared(bench, tool, {"stderr": "panic: boom", "exit": 41})
    ended = bench.run(tool)
    assert ended.returncode == 1
    assert (record(bench).status, record(bench).agent_exit) == ("no_submission", 41)
    assert "panic: boom" in bench.only.agent_log.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("tool", KEYS)
def test_one_that_hangs_beyond_the_deadline_is_ended_and_what_it_submitted_counts(
    bench: Bench, tool: str
) -> None:
    prepared(bench, tool, WORK | {"ignore_sigterm": True, "sleep": 600, "background": 600})
    began = time.monotonic()
    ended = bench.run(tool, "--timeout", "40")
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - began < 170
    assert record(bench).status == "completed"
    assert record(bench).result is not None


@first_fast
def test_without_a_key_or_the_program_nothing_is_started(bench: Bench, tool: str) -> None:
    prepared(bench, tool, WORK, key=False)
    refused = bench.run(tool)
    assert refused.returncode == 2
    assert KEYS[tool] in refused.stderr
    prepared(bench, tool, WORK)
    bench.environment["PATH"] = "/usr/bin:/bin"
    bench.environment.pop("OPENHANDS_PYTHON", None)
    refused = bench.run(tool)
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "install" in refused.stderr
    assert bench.runs == []


def test_a_program_outside_the_system_is_seen_through_its_variable(bench: Bench, tmp_path: Path) -> None:
    prepared(bench, "codex", WORK)
    hidden = tmp_path / "opt 工具"
    program = write_stand_in(hidden, "codex", [WORK])
    bench.environment |= {"PATH": "/usr/bin:/bin", "CODEX_BIN": str(program), "MAX_PROMPTS": "1"}
    ended = bench.run("codex", "--timeout", "120", "--pass-env", "MAX_PROMPTS")
    assert ended.returncode == 0, ended.stderr
    assert calls(bench.only.workspace.root)[0]["argv"][0] == "exec"
