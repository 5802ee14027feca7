"""Claude Code (`npm install -g @anthropic-ai/claude-code`) as an agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.agents._cli.adapter import Heard, Place, Usage, called, text_of
from posttrain.agents._cli.session import run


class ClaudeCode:
    name = "Claude Code"
    program = "claude"
    variable = "CLAUDE_BIN"
    install = "npm install -g @anthropic-ai/claude-code"
    keys = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
    version = ("--version",)
    guide = "CLAUDE.md"

    def prepare(self, place: Place) -> dict[str, str]:
        # its shell tool ends a command after two minutes unless it is told that training takes longer
        longest = str(max(600, int(float(place.env.get("TIMEOUT_S", "0")))) * 1000)
        return {
            "CLAUDE_CONFIG_DIR": str(place.home / ".claude"),
            "IS_SANDBOX": "1",  # without it, it does nothing as root
            "BASH_DEFAULT_TIMEOUT_MS": "600000",
            "BASH_MAX_TIMEOUT_MS": longest,
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def argv(self, place: Place, *, session: str | None) -> list[str]:
        return [
            "--print",
            "--verbose",
            *("--output-format", "stream-json"),
            "--dangerously-skip-permissions",
            *(("--model", place.model) if place.model else ()),
            *(("--effort", place.effort) if place.effort else ()),
            *(("--resume", session) if session else ()),
        ]

    def read(self, event: Mapping[str, Any]) -> Heard:
        session = event.get("session_id")
        if event["type"] == "result":
            usage = event.get("usage") or {}
            cached = usage.get("cache_read_input_tokens", 0) + usage.get("cache_creation_input_tokens", 0)
            used = Usage(
                usage.get("input_tokens", 0) + cached,
                usage.get("output_tokens", 0),
                event.get("total_cost_usd") or 0.0,
            )
            failed = (
                (f"error: {event.get('result') or event.get('subtype')}",) if event.get("is_error") else ()
            )
            return Heard(failed, session=session, usage=used)
        if event["type"] not in {"assistant", "user"}:
            return Heard(session=session)
        parts = event["message"]["content"]
        parts = parts if isinstance(parts, list) else [{"type": "text", "text": parts}]
        worked = any(part.get("type") == "tool_use" for part in parts)
        return Heard(tuple(_lines(parts)), session=session, worked=worked)


def _lines(parts: list[dict[str, Any]]) -> Iterator[str]:
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            yield part["text"]
        elif kind == "thinking":
            yield f"(thinks) {part['thinking']}"
        elif kind == "tool_use":
            yield called(part["name"], part["input"])
        elif kind == "tool_result":
            yield text_of(part.get("content"))


if __name__ == "__main__":
    sys.exit(run(ClaudeCode(), sys.argv[1:], os.environ))
