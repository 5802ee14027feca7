"""A lab home, a tiny base, and a driver model that is played."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from posttrain.core.paths import LabPaths
from posttrain.testing.scripted_llm import ScriptedLlm
from posttrain.testing.tiny import tiny_model
from run_bench import Bench

Played = Callable[[Sequence[dict[str, Any]]], ScriptedLlm]


@pytest.fixture
def bench(lab: LabPaths) -> Bench:
    lab.agents.mkdir()
    return Bench(lab, tiny_model(lab.home.parent / "base"))


@pytest.fixture
def played(bench: Bench) -> Iterator[Played]:
    """Starts a server with a script and lets the bench's runs ask it."""
    with ExitStack() as running:

        def start(steps: Sequence[dict[str, Any]]) -> ScriptedLlm:
            llm = running.enter_context(ScriptedLlm({"steps": list(steps), "api_key": "sk-played-key"}))
            bench.environment |= {
                "CHAT_MODEL": "scripted",
                "OPENAI_API_BASE": llm.url,
                "OPENAI_API_KEY": "sk-played-key",
                "CHAT_PRICE": "1,10",
            }
            return llm

        yield start
