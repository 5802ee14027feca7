"""Every command-line agent's start script, with stand-ins for the tool and the grading server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from posttrain.agents._cli.clock import told
from posttrain.agents.registry import AgentRegistry
from posttrain.core.specs import AgentSpec
from posttrain.testing.stand_in import SESSION, calls, write_stand_in

KEYS = {
    "claude": "ANTHROPIC_API_KEY",
    "codex": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "opencode": "OPENAI_API_KEY",
    "openhands": "OPENAI_API_KEY",
}
GUIDES = {"claude": "CLAUDE.md", "gemini": "GEMINI.md"}
SECRET = "sk-very-secret-0123456789"
every_tool = pytest.mark.parametrize("tool", KEYS)


def agent(tool: str, programs: Path | None = None, *, profile: str = "", **variables: str) -> AgentSpec:
    spec = AgentRegistry().load(f"{tool}:{profile}" if profile else tool)
    here = {"OPENHANDS_PYTHON": str(programs / tool)} if tool == "openhands" and programs else {}
    return spec.model_copy(update={"env_vars": {**spec.env_vars, **here, **variables}})


def host(tool: str, programs: Path | None) -> dict[str, str]:
    path = [str(programs)] if programs else []
    return {"PATH": os.pathsep.join([*path, "/usr/bin", "/bin"]), KEYS[tool]: SECRET}


def play(bench: Any, tmp_path: Path, tool: str, turns: Sequence[Mapping[str, Any]], **variables: str) -> Any:
    programs = tmp_path / "programs"
    write_stand_in(programs, tool, turns)
    return bench.run(agent(tool, programs, **variables), host=host(tool, programs))


def trace(workspace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (workspace / "trace.jsonl").read_text("utf-8").splitlines()]


@every_tool
def test_it_is_prompted_on_stdin_and_again_in_the_same_conversation(
    bench: Any, tmp_path: Path, tool: str
) -> None:
    ended = play(bench, tmp_path, tool, [{"say": "好的", "shell": "timer; echo $((6*7))"}], MAX_PROMPTS="2")
    first, second = calls(bench.workspace)
    assert ended.returncode == 0, ended.stdout
    assert "on the task `boolean`" in first["stdin"]
    assert "Nothing has been handed in yet" in second["stdin"]
    assert SESSION not in first["argv"]
    assert SESSION in second["argv"]
    assert {first["cwd"], second["cwd"]} == {str(bench.workspace)}
    assert "好的" in ended.stdout
    assert "42" in ended.stdout
    assert "seconds), until" in ended.stdout  # the timer answered
    used = [line["ended"] for line in trace(bench.workspace) if "ended" in line]
    assert [(use["exit_code"], use["input_tokens"], use["output_tokens"]) for use in used] == [
        (0, 100, 20),
        (0, 200, 40),
    ]


@every_tool
def test_it_sees_its_own_key_and_standing_orders_and_the_key_is_nowhere_in_what_is_kept(
    bench: Any, tmp_path: Path, tool: str
) -> None:
    others = dict.fromkeys(set(KEYS.values()) - {KEYS[tool]}, "sk-of-somebody-else")
    programs = tmp_path / "programs"
    write_stand_in(programs, tool, [{"shell": "env; cat AGENTS.md", "stderr": f"key is {SECRET}"}])
    ended = bench.run(
        agent(tool, programs, MAX_PROMPTS="1"), host={**host(tool, programs), **others, "HF_TOKEN": "hf_1"}
    )
    (call,) = calls(bench.workspace)
    assert ended.returncode == 0, ended.stdout
    assert call["env"][KEYS[tool]] == SECRET
    assert not {"HF_TOKEN", *others} & set(call["env"])
    assert call["env"]["HOME"].startswith(str(bench.workspace))
    orders = (bench.workspace / GUIDES.get(tool, "AGENTS.md")).read_text("utf-8")
    assert "RULES.md" in orders
    (bench.workspace / "code" / "calls.jsonl").unlink()  # the stand-in's own record
    kept = [path for path in bench.workspace.rglob("*") if path.is_file()]
    assert SECRET not in ended.stdout
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


@every_tool
def test_a_crash_ends_with_the_tools_own_exit_code(bench: Any, tmp_path: Path, tool: str) -> None:
    ended = play(bench, tmp_path, tool, [{"stderr": "Segmentation fault", "exit": 37}])
    assert ended.returncode == 37
    assert "Segmentation fault" in ended.stdout
    assert len(calls(bench.workspace)) == 1  # it had done nothing: trying again would change nothing


@every_tool
def test_a_missing_key_is_a_line_and_2(bench: Any, tmp_path: Path, tool: str) -> None:
    programs = tmp_path / "programs"
    write_stand_in(programs, tool, [{"say": "hi"}])
    ended = bench.run(agent(tool, programs), host={"PATH": host(tool, programs)["PATH"]})
    assert ended.returncode == 2
    assert len(ended.stdout.splitlines()) == 1
    assert KEYS[tool] in ended.stdout


@every_tool
def test_a_missing_program_is_a_line_and_127(bench: Any, tool: str) -> None:
    ended = bench.run(agent(tool), host=host(tool, None))
    assert ended.returncode == 127
    assert len(ended.stdout.splitlines()) == 1
    assert "install" in ended.stdout


@every_tool
def test_the_start_script_asks_the_tool_for_its_version(tmp_path: Path, tool: str) -> None:
    programs = tmp_path / "programs"
    program = write_stand_in(programs, tool, [{}])
    if tool == "openhands":  # its program is a Python, which is asked for the version of a package
        program.write_text("#!/bin/sh\necho '9.9.9 (stand-in)'\n", "utf-8")
    spec = agent(tool)
    asked = subprocess.run(
        ["bash", str(spec.folder / spec.start), "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "POSTTRAIN_PYTHON": sys.executable,
            "OPENHANDS_PYTHON": str(program),
        },
    )
    assert (asked.returncode, asked.stdout) == (0, "9.9.9 (stand-in)\n")


@contextmanager
def working(bench: Any, tmp_path: Path, tool: str) -> Iterator[subprocess.Popen[str]]:
    """An agent in the middle of its first turn; its second turn ends well."""
    programs = tmp_path / "programs"
    write_stand_in(programs, tool, [{"shell": "echo working", "sleep": 600}, {"shell": "true"}])
    spec = agent(tool, programs)
    env = {
        **host(tool, programs),
        **spec.env_vars,
        "WORKSPACE": str(bench.workspace),
        "DEADLINE": str(int(time.time()) + 60),
        "TIMEOUT_S": "60",
        "POSTTRAIN_PYTHON": sys.executable,
    }
    with subprocess.Popen(
        ["bash", str(spec.folder / spec.start)],
        env=env,
        cwd=bench.workspace,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        assert started.stdout is not None
        while "working" not in started.stdout.readline():
            pass
        yield started


@every_tool
def test_stopped_at_the_deadline_it_takes_the_tool_with_it(bench: Any, tmp_path: Path, tool: str) -> None:
    with working(bench, tmp_path, tool) as started:
        started.send_signal(signal.SIGTERM)
        assert started.wait(10) == 143
    assert trace(bench.workspace)[-1]["ended"]["exit_code"] == 143


def test_after_work_a_failed_turn_is_tried_again_and_told_of(bench: Any, tmp_path: Path) -> None:
    turns = [{"shell": "true"}, {"exit": 1}, {"shell": "true"}]
    ended = play(bench, tmp_path, "claude", turns, MAX_PROMPTS="3")
    assert ended.returncode == 0
    assert "broke off (exit code 1)" in calls(bench.workspace)[2]["stdin"]


def test_a_turn_that_cannot_be_begun_is_tried_again(bench: Any, tmp_path: Path) -> None:
    turns = [{"shell": "mkdir .agent/prompt-2.md"}, {"shell": "true"}]
    ended = play(bench, tmp_path, "claude", turns, MAX_PROMPTS="3")
    assert ended.returncode == 0, ended.stdout
    assert len(calls(bench.workspace)) == 2


def test_a_home_that_cannot_be_made_is_a_line_and_126(bench: Any, tmp_path: Path) -> None:
    (bench.workspace / ".agent").touch()
    ended = play(bench, tmp_path, "claude", [{}])
    assert ended.returncode == 126
    assert "cannot be started: File exists" in ended.stdout or "Not a directory" in ended.stdout
    assert "Traceback" not in ended.stdout


def test_a_model_that_only_talks_is_not_prompted_for_ever(bench: Any, tmp_path: Path) -> None:
    ended = play(bench, tmp_path, "codex", [{"say": "I am done."}])
    assert ended.returncode == 0
    assert len(calls(bench.workspace)) == 3
    assert "3 turns without any work" in ended.stdout


def test_where_less_is_better_the_lowest_score_is_told_as_the_best(bench: Any, tmp_path: Path) -> None:
    rows = [
        {"model_path": f"output/v{n}", "status": "graded", "score": score, "improvement": 50 - score}
        for n, score in enumerate([30.0, 70.0], start=1)
    ]
    (bench.workspace / "scores.json").write_text(json.dumps([{"status": "error"}, *rows]), "utf-8")
    play(bench, tmp_path, "claude", [{"shell": "true"}], MAX_PROMPTS="2")
    told = calls(bench.workspace)[1]["stdin"]
    assert "3 submission(s) so far, 2 graded; the best is output/v1 with 30.0" in told


def test_too_little_time_is_a_reason_not_to_prompt_again(bench: Any, tmp_path: Path) -> None:
    bench.server.deadline = time.time() + 5
    ended = play(bench, tmp_path, "gemini", [{"shell": "sleep 2"}], REPROMPT_LEFT_S="600")
    assert ended.returncode == 0
    assert len(calls(bench.workspace)) >= 2  # no more than a tenth of the budget is left over
    assert "no further prompt" in ended.stdout


def test_what_a_tool_leaves_running_does_not_hold_up_the_next_prompt(bench: Any, tmp_path: Path) -> None:
    began = time.monotonic()
    ended = play(bench, tmp_path, "opencode", [{"shell": "true", "background": 30}], MAX_PROMPTS="2")
    assert ended.returncode == 0
    assert time.monotonic() - began < 20


def test_output_of_any_shape_is_kept_and_ends_nothing(bench: Any, tmp_path: Path) -> None:
    odd = [
        '{"type": "assistant"}',
        "[1, 2]",
        "{broken",
        '{"type": ["x"]}',
        "\x1b[31mred\x1b[0m",
        "x" * 50_000,
    ]
    turns = [{"raw": "\n".join(odd), "shell": "head -c 300000 /dev/zero | tr '\\0' x"}]
    ended = play(bench, tmp_path, "claude", turns, MAX_PROMPTS="1")
    assert ended.returncode == 0
    lines = trace(bench.workspace)
    assert {"type": "assistant"} in [line.get("event") for line in lines]
    assert [line["text"] for line in lines if "text" in line] == [odd[1], odd[2], odd[4], odd[5]]
    assert len(max(ended.stdout.splitlines(), key=len)) < 3000
    assert "\x1b" not in ended.stdout


def test_a_resumed_run_goes_on_with_its_conversation(bench: Any, tmp_path: Path) -> None:
    play(bench, tmp_path, "claude", [{"shell": "true"}], MAX_PROMPTS="1")
    play(bench, tmp_path, "claude", [{"shell": "true"}], MAX_PROMPTS="1", POSTTRAIN_RESUMED="1")
    again = calls(bench.workspace)[1]
    assert SESSION in again["argv"]
    assert "This run was interrupted and goes on" in again["stdin"]
    assert trace(bench.workspace)[-1]["ended"]["dollars"] == 0.5  # of both processes


@every_tool
def test_one_killed_in_its_first_turn_goes_on_with_its_conversation(
    bench: Any, tmp_path: Path, tool: str
) -> None:
    with working(bench, tmp_path, tool) as started:
        os.killpg(started.pid, signal.SIGKILL)
    programs = tmp_path / "programs"
    spec = agent(tool, programs, MAX_PROMPTS="1", POSTTRAIN_RESUMED="1")
    assert bench.run(spec, host=host(tool, programs)).returncode == 0
    assert SESSION in calls(bench.workspace)[1]["argv"]


def test_a_conversation_that_is_gone_is_begun_anew(bench: Any, tmp_path: Path) -> None:
    play(bench, tmp_path, "claude", [{"shell": "true"}], MAX_PROMPTS="1")
    program = tmp_path / "programs" / "claude"
    program.rename(program.with_name("real"))
    gone = 'case "$*" in *--resume*) echo "No conversation found" >&2; exit 1 ;; esac'
    program.write_text(f'#!/bin/bash\n{gone}\nexec "$(dirname "$0")/real" "$@"\n', "utf-8")
    program.chmod(0o755)
    spec = agent("claude", program.parent, MAX_PROMPTS="2", POSTTRAIN_RESUMED="1")
    assert bench.run(spec, host=host("claude", program.parent)).returncode == 0
    assert "on the task `boolean`" in calls(bench.workspace)[1]["stdin"]


@pytest.mark.slow
def test_a_conversation_that_fails_again_and_again_is_begun_anew(bench: Any, tmp_path: Path) -> None:
    turns = [{"shell": "true"}, {"exit": 1}, {"exit": 1}, {"shell": "true"}]
    play(bench, tmp_path, "claude", turns, MAX_PROMPTS="1")
    ended = play(bench, tmp_path, "claude", turns, MAX_PROMPTS="3", POSTTRAIN_RESUMED="1")
    assert ended.returncode == 0, ended.stdout
    asked = calls(bench.workspace)
    assert [SESSION in call["argv"] for call in asked] == [False, True, True, False]
    assert "on the task `boolean`" in asked[3]["stdin"]


@pytest.mark.parametrize(
    ("tool", "profile", "words"),
    [
        ("claude", "opus-high", ["--model", "opus", "--effort", "high"]),
        ("codex", "high", ["--model", "gpt-5.2", "-c", 'model_reasoning_effort="high"']),
        ("gemini", "flash", ["--model", "gemini-2.5-flash"]),
        ("opencode", "gpt-5.2-high", ["--model", "posttrain/gpt-5.2", "--variant", "high"]),
    ],
)
def test_a_profile_chooses_model_and_effort(
    bench: Any, tmp_path: Path, tool: str, profile: str, words: list[str]
) -> None:
    programs = tmp_path / "programs"
    write_stand_in(programs, tool, [{}])
    bench.run(agent(tool, programs, profile=profile, MAX_PROMPTS="1"), host=host(tool, programs))
    argv = calls(bench.workspace)[0]["argv"]
    at = argv.index(words[0])
    assert argv[at : at + len(words)] == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0s"), (59.9, "59s"), (60, "1m 00s"), (4325, "1h 12m 05s"), (90_000, "25h 00m 00s")],
)
def test_time_is_told_in_words(seconds: float, words: str) -> None:
    assert told(seconds) == words


@pytest.mark.parametrize("content", ["#!/nowhere/interpreter\n", "\0\1no program"])
def test_a_program_that_cannot_be_started_is_a_line_and_126(bench: Any, tmp_path: Path, content: str) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "claude").write_text(content, "utf-8")
    (programs / "claude").chmod(0o755)
    ended = bench.run(agent("claude", programs), host=host("claude", programs))
    assert ended.returncode == 126
    assert "cannot be started" in ended.stdout
    assert "Traceback" not in ended.stdout


@pytest.mark.parametrize(
    "event",
    [
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "half \ud800"}]}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": 5}]}},
        {"type": "result", "usage": {}, "total_cost_usd": "much", "session_id": ["a"]},
    ],
    ids=["surrogate", "number", "usage"],
)
def test_an_event_of_wrong_types_does_not_end_the_listening(
    bench: Any, tmp_path: Path, event: dict[str, Any]
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    told = json.dumps(event).replace("\\", "\\\\")
    (programs / "claude").write_text(
        f"#!/bin/sh\nprintf '%b\\n' '{told}'\nhead -c 300000 /dev/zero\n", "utf-8"
    )
    (programs / "claude").chmod(0o755)
    ended = bench.run(agent("claude", programs, MAX_PROMPTS="1"), host=host("claude", programs), timeout_s=30)
    assert ended.returncode == 0, ended.stdout[-500:]
    assert "Traceback" not in ended.stdout
