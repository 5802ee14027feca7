"""Agent folders for tests: a toy agent with given steps, and one in the ancestor's format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_HERE = Path(__file__).parent
ANCESTOR_AGENT = _HERE / "ancestor_agent"
_TOY_AGENT = _HERE / "toy_agent"


def write_toy_agent(root: Path, name: str, steps: Sequence[Mapping[str, Any]], **config: Any) -> Path:
    """An agent folder `root/name` that follows `steps` (see toy_agent/toy.py).

    `config` is laid over its config.yaml.
    """
    folder = root / name
    shutil.copytree(_TOY_AGENT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "steps.json").write_text(json.dumps(list(steps), indent=2), "utf-8")
    manifest = yaml.safe_load((folder / "config.yaml").read_text("utf-8")) | config
    (folder / "config.yaml").write_text(yaml.safe_dump(manifest), "utf-8")
    return folder


def copy_ancestor_agent(root: Path, name: str = "ancestor") -> Path:
    """The folder in AutoRL-Bench's format, under `root/name`."""
    folder = root / name
    shutil.copytree(ANCESTOR_AGENT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
