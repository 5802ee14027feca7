"""One lab home for all attacks of a session: data, self-check and baseline are made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths
from posttrain.infra.levels import probe_levels
from posttrain.infra.processes import Spawner
from posttrain.testing.tiny import tiny_model
from run_bench import Bench

from .arena import Arena, enlist


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Arena:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with Spawner() as spawner:
        why_not = probe_levels(spawner).why_no_bwrap
    if why_not:
        pytest.skip(why_not)
    home = tmp_path_factory.mktemp("redteam") / "home"
    (home / "agents").mkdir(parents=True)
    return enlist(Bench(LabPaths(home), tiny_model(Path(home.parent, "base"))))
