"""A lab home of its own for every test of real runs."""

from __future__ import annotations

import pytest

from posttrain.core.paths import LabPaths
from posttrain.testing.tiny import tiny_model
from run_bench import Bench


@pytest.fixture
def bench(lab: LabPaths) -> Bench:
    lab.agents.mkdir()
    return Bench(lab, tiny_model(lab.home.parent / "base"))
