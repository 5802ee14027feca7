"""A lab home of its own for every test, with a tiny base model beside it."""

from __future__ import annotations

import json

import pytest

from posttrain.core.paths import LabPaths
from posttrain.testing.tiny import tiny_model
from survival.kit import Site


@pytest.fixture
def site(lab: LabPaths) -> Site:
    """Its base answers at once."""
    lab.agents.mkdir()
    return Site(lab, tiny_model(lab.home.parent / "base"))


@pytest.fixture
def slow_site(site: Site) -> Site:
    """Its base takes its time, so that a baseline lasts."""
    script = {"accuracy": 0.5, "delay_s": 3.0}
    (site.base / "scripted.json").write_text(json.dumps(script), "utf-8")
    return site


@pytest.fixture
def slow_task(site: Site) -> str:
    """A task of the lab whose rows take some seconds to prepare."""
    folder = site.lab.benchmarks / "sums"
    folder.mkdir(parents=True)
    (folder / "benchmark.yaml").write_text(
        "title: Sums\nevaluator: numeric\nprompt: {template: '{question}'}\n"
        "splits: {val: {from: train, size: 30}, test: {from: test}}\n",
        "utf-8",
    )
    (folder / "description.md").write_text("# Sums\n", "utf-8")
    (folder / "data.py").write_text(_SUMS, "utf-8")
    return "sums"


_SUMS = '''"""Sums of two numbers."""
import json, time
from pathlib import Path

def prepare(target, *, source):
    target = Path(target)
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(12) for b in range(10)]
    (target / "train.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows[:90]))
    time.sleep(2.0)
    (target / "test.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows[90:]))
'''
