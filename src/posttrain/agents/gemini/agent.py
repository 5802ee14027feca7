"""Gemini CLI (`npm install -g @google/gemini-cli`) as an agent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from posttrain.agents._cli.adapter import Heard, Place, Usage, called, text_of
from posttrain.agents._cli.session import run


class Gemini:
    name = "Gemini CLI"
    program = "gemini"
    variable = "GEMINI_BIN"
    install = "npm install -g @google/gemini-cli"
    keys = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    version = ("--version",)
    guide = "GEMINI.md"

    def prepare(self, place: Place) -> dict[str, str]:
        folder = place.home / ".gemini"
        folder.mkdir(exist_ok=True)
        settings: dict[str, Any] = {
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "privacy": {"usageStatisticsEnabled": False},
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "tools": {"shell": {"inactivityTimeout": 0}},  # training may be silent for long
        }
        if place.effort and not place.effort.isdigit():
            print(f"EFFORT: {place.effort!r} is no number of tokens that Gemini may think", flush=True)
            sys.exit(2)
        if place.effort and place.model:
            thinking = {"thinkingConfig": {"thinkingBudget": int(place.effort)}}
            settings["modelConfigs"] = {
                "customOverrides": [
                    {
                        "match": {"model": place.model},
                        "modelConfig": {"generateContentConfig": thinking},
                    }
                ]
            }
        (folder / "settings.json").write_text(json.dumps(settings, indent=2), "utf-8")
        return {"GEMINI_CLI_HOME": str(place.home), "GEMINI_SANDBOX": "false"}

    def argv(self, place: Place, *, session: str | None) -> list[str]:
        return [
            *("--output-format", "stream-json"),
            *("--approval-mode", "yolo"),
            "--skip-trust",
            *(("--model", place.model) if place.model else ()),
            *(("--resume", session) if session else ()),
        ]

    def read(self, event: Mapping[str, Any]) -> Heard:
        kind = event["type"]
        if kind == "init":
            return Heard(session=event["session_id"])
        if kind == "message":
            if event["role"] == "user":
                return Heard()
            said = text_of(event["content"])
            return Heard(piece=said) if event.get("delta") else Heard((said,))
        if kind == "tool_use":
            return Heard((called(event["tool_name"], event["parameters"]),), worked=True)
        if kind == "tool_result":
            return Heard((text_of(event.get("output") or (event.get("error") or {}).get("message")),))
        if kind == "error":
            return Heard((f"{event.get('severity', 'error')}: {event['message']}",))
        if kind == "result":
            stats = event.get("stats") or {}
            failed = event.get("error") or {}
            said = (f"error: {failed['message']}",) if failed else ()
            return Heard(said, usage=Usage(stats.get("input_tokens", 0), stats.get("output_tokens", 0)))
        return Heard()


if __name__ == "__main__":
    sys.exit(run(Gemini(), sys.argv[1:], os.environ))
