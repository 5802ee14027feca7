"""The environment of an agent: built from an allow-list, never inherited.

Later layers win: host variables on the list, the agent's own env_vars, variables passed by name,
the contract. PATH starts with the folder of our Python in any case, so that `python` and
`posttrain` in a start script are ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from posttrain.core.errors import UsageError
from posttrain.core.specs import AgentSpec

_HOST_NAMES = frozenset({"HOME", "USER", "LANG", "TZ", "TMPDIR", "TERM"})
_DEVICE_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "HF_ENDPOINT"})
_HOST_PREFIXES = ("LC_", "NVIDIA_", "OMP_")
_SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_LOOPBACK = ("127.0.0.1", "localhost")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Contract:
    """What every agent is told about its run; these variables win over all others."""

    task: str
    base_model: str
    workspace: Path
    model_path: Path
    data_path: Path
    output_dir: Path
    grading_server_url: str
    timeout_s: float
    """Seconds from the start of this agent process to the deadline."""
    deadline: float
    """Unix seconds."""
    run_id: str
    seed: int
    python: Path
    """The interpreter that runs posttrain; not resolved, so that a venv's folder stays a venv's."""
    resumed: int = 0
    """How often this run was resumed before."""

    def variables(self) -> dict[str, str]:
        """Names and texts; seconds are whole, so that shell arithmetic can use them."""
        told = {
            "TASK": self.task,
            "BASE_MODEL": self.base_model,
            "WORKSPACE": str(self.workspace),
            "MODEL_PATH": str(self.model_path),
            "DATA_PATH": str(self.data_path),
            "OUTPUT_DIR": str(self.output_dir),
            "GRADING_SERVER_URL": self.grading_server_url,
            "TIMEOUT_S": str(int(self.timeout_s)),
            "DEADLINE": str(int(self.deadline)),
            "RUN_ID": self.run_id,
            "SEED": str(self.seed),
            "POSTTRAIN_PYTHON": str(self.python),
        }
        return told | ({"POSTTRAIN_RESUMED": str(self.resumed)} if self.resumed else {})


def agent_environment(
    agent: AgentSpec,
    contract: Contract,
    *,
    host: Mapping[str, str],
    network: Literal["grader", "host"],
    pass_env: Iterable[str] = (),
    programs: Mapping[str, str] | None = None,
    home: Path | None = None,
    tmpdir: Path | None = None,
) -> dict[str, str]:
    """The complete environment of one agent process.

    `home` and `tmpdir` replace the host's where the agent sees other folders. Names in `pass_env`,
    and in the agent's own list, are taken from `host` where they are set there. `programs` are variables
    that say where programs were found.
    """
    env = {name: value for name, value in host.items() if _on_the_list(name, network)}
    # spinning OpenMP threads of an agent would slow down grading on the same cores many times
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    env |= {"HOME": str(home)} if home else {}
    env |= {"TMPDIR": str(tmpdir)} if tmpdir else {}
    env |= agent.env_vars
    env |= {name: host[name] for name in (*agent.pass_env, *pass_env) if name in host}
    env |= programs or {}
    env["PATH"] = _path(contract.python.parent, env.get("PATH", host.get("PATH", os.defpath)))
    return _reaching_loopback(env) | contract.variables()


def check_pass_env(names: Iterable[str], host: Mapping[str, str]) -> None:
    """UsageError if a name that the operator asked to pass is none, or is not set."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(f"--pass-env: {name!r} is not the name of an environment variable")
        if name not in host:
            raise UsageError(f"--pass-env: {name} is not set here; set it or leave the option out")


def _on_the_list(name: str, network: Literal["grader", "host"]) -> bool:
    if name in _HOST_NAMES | _DEVICE_NAMES:
        return True
    if name.startswith(_HOST_PREFIXES):
        # NVIDIA_API_KEY shares a prefix with NVIDIA_VISIBLE_DEVICES; secrets pass by --pass-env alone
        return not name.endswith(_SECRET_ENDINGS)
    return network == "host" and name.lower().endswith("_proxy")


def _path(first: Path, rest: str) -> str:
    folders = [folder for folder in rest.split(os.pathsep) if folder and folder != str(first)]
    return os.pathsep.join([str(first), *folders])


def _reaching_loopback(env: dict[str, str]) -> dict[str, str]:
    """Keep the grading server out of any proxy: its URL is a secret and lives on this machine."""
    if not any(name.lower().endswith("_proxy") for name in env):
        return env
    stated = env.get("no_proxy", env.get("NO_PROXY", ""))
    hosts = [host.strip() for host in stated.split(",") if host.strip()]
    both = ",".join([*hosts, *(host for host in _LOOPBACK if host not in hosts)])
    return env | {"no_proxy": both, "NO_PROXY": both}
