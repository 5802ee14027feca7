"""The bench that experiments run on in tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from blueprints.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench with a tmux server of its own, ended with all its sessions after the test."""
    sockets = tempfile.mkdtemp(prefix="pt-tmux-")  # socket paths must be short
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TMUX")},
        "TMUX_TMPDIR": sockets,
        "POSTTRAIN_HOME": str(tmp_path / "home"),
        "SHELL": "/bin/bash",
    }
    made = Bench(root=tmp_path, env=env)
    made.code.mkdir()
    yield made
    made.close()
    shutil.rmtree(sockets)
