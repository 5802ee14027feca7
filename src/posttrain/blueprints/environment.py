"""The environment of an experiment: the caller's, without secrets, with the blueprint's Python first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from posttrain.blueprints.blueprint import Blueprint

_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(?:^|_)AUTH|COOKIE|PRIVATE|_PWD$|_PAT$|WEBHOOK|DSN$"
    r"|^(?:OPENAI|ANTHROPIC|AZURE|GEMINI|GOOGLE|AWS|POSTTRAIN|GRADING|SSH|GPG|CHAT_MODEL)",
    re.IGNORECASE,
)
_OURS = {"TMUX", "TMUX_PANE", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "ENV", "PWD", "OLDPWD"}
_DEFAULTS = {"PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def without_secrets(base: Mapping[str, str], *, keep: Iterable[str] = ()) -> dict[str, str]:
    """`base` without names that look like secrets, and without what belongs to our own process."""
    kept = set(keep)
    return {
        name: value
        for name, value in base.items()
        if name in kept or not (name in _OURS or _SECRET.search(name) or name.startswith("BASH_FUNC_"))
    }


def experiment_environment(
    base: Mapping[str, str], blueprint: Blueprint, *, pass_env: Iterable[str] = (), gpu: str | None = None
) -> dict[str, str]:
    """What the command of a blueprint gets to see."""
    folder = blueprint.python.parent
    env = {**_DEFAULTS, **without_secrets(base, keep=pass_env)}
    env["PATH"] = f"{folder}:{base.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    env["VIRTUAL_ENV"] = str(folder.parent)
    if gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpu
    return env
