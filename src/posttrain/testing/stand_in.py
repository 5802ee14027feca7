# ruff: noqa: T201 - a program of its own, started in place of a tool
"""A stand-in for the command-line agents: records how it is called, and behaves as it is told.

`write_stand_in(folder, "claude", turns)` makes a program `folder/claude` that speaks Claude Code's JSON lines
(or codex', gemini's, opencode's; `openhands` stands in for its Python). Each call plays the next of `turns`,
then the last one again. A turn is an object with any of

    say          words of the model
    shell        a command that it runs with its shell tool
    submit       a folder below output/: the base model is copied there and handed in
    summary      text appended to reports/summary.md
    stderr, raw  a line on standard error; a line on standard output that is no JSON
    sleep        seconds; `ignore_sigterm: true` before it makes a tool that must be killed
    background   seconds that a process lives which keeps the output open
    exit         the exit code (0)

Argv, environment and standard input of every call stand in `workspace/code/calls.jsonl`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SESSION = "0d9f3c52-5b57-4d8e-9d0c-3a6f4f1d2b11"
"""The conversation's id that every stand-in tells."""
_KEYS = {
    "claude": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    "codex": ("OPENAI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "opencode": ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    "openhands": ("LLM_API_KEY", "OPENAI_API_KEY"),
}
_VERSION = "9.9.9 (stand-in)"


def write_stand_in(folder: Path, tool: str, turns: Sequence[Mapping[str, Any]]) -> Path:
    """The program `folder/<tool>`; for `openhands`, an interpreter to be named by OPENHANDS_PYTHON."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / tool
    words = [sys.executable, "-m", "posttrain.testing.stand_in", tool, json.dumps(list(turns))]
    real = (
        f'case "$1" in -*) exec {shlex.quote(sys.executable)} "$@" ;; esac\n' if tool == "openhands" else ""
    )
    program.write_text(f'#!/bin/bash\n{real}exec {shlex.join(words)} "$@"\n', "utf-8")
    program.chmod(0o755)
    return program


def calls(workspace: Path) -> list[dict[str, Any]]:
    """`argv`, `env` and `stdin` of every call in a workspace, in order."""
    lines = (workspace / "code" / "calls.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def main(tool: str, turns: list[dict[str, Any]], argv: list[str]) -> int:
    """Play one call."""
    if "--version" in argv:
        print(_VERSION)
        return 0
    workspace = Path(os.environ["WORKSPACE"])
    number = _record(workspace / "code" / "calls.jsonl", argv)
    if not any(os.environ.get(name) for name in _KEYS[tool]):
        print("Invalid API key", file=sys.stderr, flush=True)
        return 1
    turn = turns[min(number, len(turns) - 1)]
    return _Tool(tool, workspace, calls=number + 1).play(turn)


def _record(path: Path, argv: list[str]) -> int:
    """Note the call; how many there were before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = len(path.read_text("utf-8").splitlines()) if path.exists() else 0
    call = {"argv": argv, "env": dict(os.environ), "stdin": sys.stdin.read(), "cwd": str(Path.cwd())}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(call, ensure_ascii=False) + "\n")
    return before


class _Tool:
    """Speaks one tool's JSON lines."""

    def __init__(self, tool: str, workspace: Path, *, calls: int) -> None:
        self._calls = calls
        self._events = _EVENTS[tool]
        self._workspace = workspace

    def play(self, turn: Mapping[str, Any]) -> int:
        self._tell(self._events["begin"]())
        if "say" in turn:
            self._tell(self._events["say"](turn["say"]))
        if "stderr" in turn:
            print(turn["stderr"], file=sys.stderr, flush=True)
        if "raw" in turn:
            print(turn["raw"], flush=True)
        if "shell" in turn:
            self._shell(turn["shell"])
        if "submit" in turn:
            self._shell(_submission(turn["submit"]))
        if "summary" in turn:
            with (self._workspace / "reports" / "summary.md").open("a", encoding="utf-8") as file:
                file.write(turn["summary"])
        if "background" in turn:
            subprocess.Popen(["sleep", str(turn["background"])], start_new_session=True)
        if turn.get("ignore_sigterm"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(turn.get("sleep", 0))
        code = int(turn.get("exit", 0))
        self._tell(self._events["end"](code, self._calls))
        return code

    def _shell(self, command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=self._workspace
        )
        self._tell(self._events["tool"](command, done.stdout + done.stderr, done.returncode))

    @staticmethod
    def _tell(events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            print(json.dumps(event, ensure_ascii=False), flush=True)


def _submission(folder: str) -> str:
    target = shlex.quote(folder)
    copy = f'mkdir -p {target} && cp -r "$MODEL_PATH/." {target} && chmod -R u+w {target}'
    return f"{copy} && posttrain submit {target}"


Events = Sequence[Mapping[str, Any]]


def _claude(kind: str, part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": kind, "message": {"role": kind, "content": [part]}, "session_id": SESSION}


def _opencode(kind: str, part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": kind, "timestamp": 0, "sessionID": SESSION, "part": part}


def _item(stage: str, item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": f"item.{stage}", "item": {"id": "item_0", **item}}


_EVENTS: Mapping[str, Mapping[str, Any]] = {
    "claude": {
        "begin": lambda: [{"type": "system", "subtype": "init", "session_id": SESSION}],
        "say": lambda text: [_claude("assistant", {"type": "text", "text": text})],
        "tool": lambda command, told, _: [
            _claude(
                "assistant", {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": command}}
            ),
            _claude("user", {"type": "tool_result", "tool_use_id": "t", "content": told}),
        ],
        "end": lambda code, _: [
            {
                "type": "result",
                "subtype": "success" if code == 0 else "error_during_execution",
                "is_error": code != 0,
                "result": "done" if code == 0 else "API Error: 500",
                "session_id": SESSION,
                "total_cost_usd": 0.25,
                "usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 20},
            }
        ],
    },
    "codex": {
        "begin": lambda: [{"type": "thread.started", "thread_id": SESSION}, {"type": "turn.started"}],
        "say": lambda text: [_item("completed", {"type": "agent_message", "text": text})],
        "tool": lambda command, told, code: [
            _item("started", {"type": "command_execution", "command": command, "status": "in_progress"}),
            _item(
                "completed",
                {
                    "type": "command_execution",
                    "command": command,
                    "aggregated_output": told,
                    "exit_code": code,
                    "status": "completed",
                },
            ),
        ],
        "end": lambda code, calls: [
            {"type": "turn.failed", "error": {"message": "stream disconnected"}}
            if code
            else {
                "type": "turn.completed",
                "usage": {  # of the whole conversation
                    "input_tokens": 100 * calls,
                    "cached_input_tokens": 90 * calls,
                    "output_tokens": 20 * calls,
                },
            }
        ],
    },
    "gemini": {
        "begin": lambda: [{"type": "init", "session_id": SESSION, "model": "gemini"}],
        "say": lambda text: [
            {"type": "message", "role": "assistant", "content": piece, "delta": True}
            for piece in (text[: len(text) // 2], text[len(text) // 2 :])
        ],
        "tool": lambda command, told, _: [
            {
                "type": "tool_use",
                "tool_name": "run_shell_command",
                "tool_id": "t",
                "parameters": {"command": command},
            },
            {"type": "tool_result", "tool_id": "t", "status": "success", "output": told},
        ],
        "end": lambda code, _: [
            {
                "type": "result",
                "status": "error" if code else "success",
                **({"error": {"type": "Error", "message": "quota"}} if code else {}),
                "stats": {"total_tokens": 120, "input_tokens": 100, "output_tokens": 20},
            }
        ],
    },
    "opencode": {
        "begin": lambda: [_opencode("step_start", {"type": "step-start"})],
        "say": lambda text: [_opencode("text", {"type": "text", "text": text})],
        "tool": lambda command, told, _: [
            _opencode(
                "tool_use",
                {
                    "type": "tool",
                    "tool": "bash",
                    "state": {"status": "completed", "input": {"command": command}, "output": told},
                },
            )
        ],
        "end": lambda code, _: [
            {"type": "error", "sessionID": SESSION, "error": {"name": "APIError", "data": {"message": "500"}}}
            if code
            else _opencode(
                "step_finish",
                {
                    "type": "step-finish",
                    "cost": 0.25,
                    "tokens": {
                        "input": 10,
                        "output": 20,
                        "reasoning": 0,
                        "cache": {"read": 90, "write": 0},
                    },
                },
            )
        ],
    },
    "openhands": {
        "begin": lambda: [{"kind": "conversation", "id": SESSION}],
        "say": lambda text: [{"kind": "message", "source": "agent", "text": text}],
        "tool": lambda command, told, _: [
            {"kind": "action", "tool": "terminal", "arguments": {"command": command}},
            {"kind": "observation", "tool": "terminal", "text": told},
        ],
        "end": lambda code, _: [
            {"kind": "error", "text": "LLM failed"}
            if code
            else {"kind": "usage", "input_tokens": 100, "output_tokens": 20, "dollars": 0.25}
        ],
    },
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]))
