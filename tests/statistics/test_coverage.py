"""The coverage that is claimed for the improvement's interval, by the script that measures it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "coverage.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("coverage_script", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def test_bonett_price_covers_what_it_claims_in_a_small_simulation(script: ModuleType) -> None:
    for setting in script.SETTINGS[:3]:
        assert script.coverage(setting, draws=1500, seed=1) >= 92.5


@pytest.mark.slow
def test_bonett_price_covers_at_least_93_and_no_more_than_97_percent(script: ModuleType) -> None:
    for setting in script.SETTINGS:
        percent = script.coverage(setting, draws=10_000, seed=0)
        assert script.acceptable(setting, percent), (setting, percent)
