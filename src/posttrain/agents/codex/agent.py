"""Codex CLI (`npm install -g @openai/codex`) as an agent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from posttrain.agents._cli.adapter import Heard, Place, Usage, called
from posttrain.agents._cli.session import run

_OPENAI = "https://api.openai.com/v1"


class Codex:
    name = "Codex CLI"
    program = "codex"
    variable = "CODEX_BIN"
    install = "npm install -g @openai/codex"
    keys = ("OPENAI_API_KEY",)
    version = ("--version",)
    guide = "AGENTS.md"

    def prepare(self, place: Place) -> dict[str, str]:
        """A provider of our own: it takes the key from the variable, so that no login is on the disk."""
        home = place.home / ".codex"
        home.mkdir(exist_ok=True)
        base = place.env.get("OPENAI_API_BASE", "").strip() or _OPENAI
        settings = [
            'model_provider = "posttrain"',
            "check_for_update_on_startup = false",
            "[model_providers.posttrain]",
            'name = "posttrain"',
            f"base_url = {json.dumps(base)}",  # a JSON string is a TOML string
            'env_key = "OPENAI_API_KEY"',
            'wire_api = "responses"',
        ]
        (home / "config.toml").write_text("\n".join(settings) + "\n", "utf-8")
        return {"CODEX_HOME": str(home)}

    def argv(self, place: Place, *, session: str | None) -> list[str]:
        return [
            "exec",
            *(("resume",) if session else ()),
            "--json",
            "--dangerously-bypass-approvals-and-sandbox",
            "--skip-git-repo-check",
            *(("--model", place.model) if place.model else ()),
            *(("-c", f"model_reasoning_effort={json.dumps(place.effort)}") if place.effort else ()),
            *((session,) if session else ()),
            "-",
        ]

    def read(self, event: Mapping[str, Any]) -> Heard:
        kind = event["type"]
        if kind == "thread.started":
            return Heard(session=event["thread_id"])
        if kind == "turn.completed":
            usage = event["usage"]
            # earlier turns of the conversation are counted again
            return Heard(total=Usage(usage["input_tokens"], usage["output_tokens"]))
        if kind == "turn.failed":
            return Heard((f"error: {event['error']['message']}",))
        if kind == "error":
            return Heard((f"error: {event['message']}",))
        if kind == "item.started" and event["item"]["type"] == "command_execution":
            return Heard((called("shell", event["item"]),), worked=True)
        return _item(event["item"]) if kind == "item.completed" else Heard()


def _item(item: Mapping[str, Any]) -> Heard:
    kind = item["type"]
    if kind == "agent_message":
        return Heard((item["text"],))
    if kind == "reasoning":
        return Heard((f"(thinks) {item['text']}",))
    if kind == "command_execution":
        return Heard(
            (f"{item.get('aggregated_output', '')}\n(exit code {item.get('exit_code')})",), worked=True
        )
    if kind == "file_change":
        changed = ", ".join(f"{change['kind']} {change['path']}" for change in item["changes"])
        return Heard((f"$ files: {changed}",), worked=True)
    if kind == "web_search":
        return Heard((f"$ search: {item['query']}",), worked=True)
    return Heard((f"error: {item['message']}",)) if kind == "error" else Heard()


if __name__ == "__main__":
    sys.exit(run(Codex(), sys.argv[1:], os.environ))
