"""The OpenHands SDK, in a Python of its own (`posttrain env install openhands`), as an agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.agents._cli.adapter import Heard, Place, Usage, called
from posttrain.agents._cli.session import run

_CONVERSE = Path(__file__).resolve().with_name("converse.py")


class OpenHands:
    name = "OpenHands"
    program = "openhands-python"
    variable = "OPENHANDS_PYTHON"
    install = "posttrain env install openhands"
    keys = ("OPENAI_API_KEY", "LLM_API_KEY")
    version = (
        "-c",
        "from importlib.metadata import version; print('openhands-sdk', version('openhands-sdk'))",
    )
    guide = "AGENTS.md"

    def prepare(self, _place: Place) -> dict[str, str]:
        return {
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no prices from the network
            "LOG_LEVEL": "ERROR",
            "PYTHONUNBUFFERED": "1",
        }

    def argv(self, place: Place, *, session: str | None) -> list[str]:
        return [
            str(_CONVERSE),
            *("--state", str(place.home / "conversations")),
            *(("--conversation", session) if session else ()),
        ]

    def read(self, event: Mapping[str, Any]) -> Heard:
        kind = event["kind"]
        if kind == "conversation":
            return Heard(session=event["id"])
        if kind == "message":
            return Heard((event["text"],) if event["source"] == "agent" else ())
        if kind == "action":
            thought = event.get("text") or ""
            return Heard(
                (thought, called(event["tool"], event["arguments"])), worked=event["tool"] != "finish"
            )
        if kind == "observation":
            return Heard((event["text"],))
        if kind == "usage":
            return Heard(usage=Usage(event["input_tokens"], event["output_tokens"], event["dollars"]))
        return Heard((f"error: {event['text']}",)) if kind == "error" else Heard()


if __name__ == "__main__":
    sys.exit(run(OpenHands(), sys.argv[1:], os.environ))
