"""What an experiment ran with: Python, the libraries that decide results, the commit of the code."""

from __future__ import annotations

import json
from collections.abc import Mapping

from posttrain import __version__
from posttrain.blueprints.blueprint import Blueprint
from posttrain.blueprints.machine import Machine

_LIBRARIES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "verl", "sglang", "deepspeed",
    "flash-attn", "ray", "agentjet", "ajet", "llamafactory", "numpy",
)  # fmt: skip
_ASK = f"""
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {{"python": platform.python_version(), "host": platform.node(), "system": platform.platform()}}
for name in {_LIBRARIES!r}:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_TIMEOUT_S = 60.0


def find_versions(blueprint: Blueprint, *, machine: Machine, env: Mapping[str, str]) -> dict[str, str]:
    """By name; what cannot be found out is left out."""
    found = {"posttrain": __version__}
    text = machine.output([str(blueprint.python), "-c", _ASK], env=env, timeout_s=_TIMEOUT_S)
    if text:
        try:
            found |= {str(name): str(value) for name, value in json.loads(text).items()}
        except (ValueError, AttributeError):
            found["python"] = text.strip()[:200]
    git = ["git", "-C", str(blueprint.codebase)]
    commit = machine.output([*git, "rev-parse", "HEAD"], env=env, timeout_s=_TIMEOUT_S)
    if commit:
        changed = machine.output(
            [*git, "status", "--porcelain", "--untracked-files=no"], env=env, timeout_s=_TIMEOUT_S
        )
        found["code"] = commit.strip() + (" with uncommitted changes" if changed and changed.strip() else "")
    return found
