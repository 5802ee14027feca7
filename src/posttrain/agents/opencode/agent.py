"""OpenCode (`npm install -g opencode-ai`) as an agent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from posttrain.agents._cli.adapter import Heard, Place, Usage, called
from posttrain.agents._cli.session import run

_OPENAI = "https://api.openai.com/v1"
_DEFAULT = "gpt-5.2"


class OpenCode:
    name = "OpenCode"
    program = "opencode"
    variable = "OPENCODE_BIN"
    install = "npm install -g opencode-ai"
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    version = ("--version",)
    guide = "AGENTS.md"

    def prepare(self, place: Place) -> dict[str, str]:
        """A provider for OPENAI_API_BASE; the key stays in its variable."""
        settings: dict[str, Any] = {
            "$schema": "https://opencode.ai/config.json",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "allow", "question": "deny"},
        }
        model = _model(place)
        more: dict[str, str] = {}
        if model.startswith("posttrain/"):
            more["OPENCODE_DISABLE_MODELS_FETCH"] = "1"  # its list of other providers' models is not needed
            base = place.env.get("OPENAI_API_BASE", "").strip() or _OPENAI
            name = model.removeprefix("posttrain/")
            settings["provider"] = {
                "posttrain": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "posttrain",
                    "options": {"baseURL": base, "apiKey": "{env:OPENAI_API_KEY}"},
                    "models": {name: {"name": name, "tool_call": True}},
                }
            }
        path = place.home / "opencode.json"
        path.write_text(json.dumps(settings, indent=2), "utf-8")
        return {
            "OPENCODE_CONFIG": str(path),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            **more,
            # training takes longer than the two minutes that its shell tool gives a command
            "OPENCODE_EXPERIMENTAL_BASH_DEFAULT_TIMEOUT_MS": "600000",
            **{
                f"XDG_{kind}_HOME": str(place.home / f".{kind.lower()}")
                for kind in ("CONFIG", "DATA", "STATE", "CACHE")
            },
        }

    def argv(self, place: Place, *, session: str | None) -> list[str]:
        return [
            "run",
            *("--format", "json"),
            "--auto",
            *("--model", _model(place)),
            *(("--variant", place.effort) if place.effort else ()),
            *(("--session", session) if session else ()),
        ]

    def read(self, event: Mapping[str, Any]) -> Heard:
        kind, session = event["type"], event.get("sessionID")
        part = event.get("part") or {}
        if kind == "text":
            return Heard((part["text"],), session=session)
        if kind == "reasoning":
            return Heard((f"(thinks) {part['text']}",), session=session)
        if kind == "tool_use":
            state = part["state"]
            told = state.get("output") or state.get("error") or ""
            return Heard((called(part["tool"], state["input"]), told), session=session, worked=True)
        if kind == "step_finish":
            tokens = part["tokens"]
            read = tokens["input"] + tokens.get("cache", {}).get("read", 0)
            written = tokens["output"] + tokens.get("reasoning", 0)
            return Heard(session=session, usage=Usage(read, written, part.get("cost") or 0.0))
        if kind == "error":
            error = event["error"]
            told = (error.get("data") or {}).get("message") or error.get("name")
            return Heard((f"error: {told}",), session=session)
        return Heard(session=session)


def _model(place: Place) -> str:
    """`provider/model`; a bare name, and whatever CHAT_MODEL says, is a model of OPENAI_API_BASE."""
    if "/" in place.model:
        return place.model
    return f"posttrain/{place.model or place.env.get('CHAT_MODEL', '').strip() or _DEFAULT}"


if __name__ == "__main__":
    sys.exit(run(OpenCode(), sys.argv[1:], os.environ))
