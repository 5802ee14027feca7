"""The agent's environment, by tables: what gets in, what stays out, what wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from posttrain.agents.environment import Contract, agent_environment, check_pass_env
from posttrain.core.errors import UsageError
from posttrain.core.specs import AgentSpec

CONTRACT = Contract(
    task="gsm8k:4shot",
    base_model="Qwen/Qwen2.5-1.5B",
    workspace=Path("/lab/run/workspace"),
    model_path=Path("/lab/run/workspace/models/Qwen/Qwen2.5-1.5B"),
    data_path=Path("/lab/run/workspace/data"),
    output_dir=Path("/lab/run/workspace/output"),
    grading_server_url="http://127.0.0.1:5000/run/secret",
    timeout_s=240.7,
    deadline=1_790_000_240.7,
    run_id="20260211T143000-123_noop",
    seed=7,
    python=Path("/venv/bin/python"),
)
TOLD = {
    "TASK": "gsm8k:4shot",
    "BASE_MODEL": "Qwen/Qwen2.5-1.5B",
    "WORKSPACE": "/lab/run/workspace",
    "MODEL_PATH": "/lab/run/workspace/models/Qwen/Qwen2.5-1.5B",
    "DATA_PATH": "/lab/run/workspace/data",
    "OUTPUT_DIR": "/lab/run/workspace/output",
    "GRADING_SERVER_URL": "http://127.0.0.1:5000/run/secret",
    "TIMEOUT_S": "240",
    "DEADLINE": "1790000240",
    "RUN_ID": "20260211T143000-123_noop",
    "SEED": "7",
    "POSTTRAIN_PYTHON": "/venv/bin/python",
}
PATH = {"PATH": "/usr/bin:/bin"}


def environment(
    host: dict[str, str],
    *,
    network: Literal["grader", "host"] = "grader",
    env_vars: dict[str, str] | None = None,
    configured: tuple[str, ...] = (),
    **options: Any,
) -> dict[str, str]:
    spec = AgentSpec(id="a", folder=Path("/agents/a"), name="A", env_vars=env_vars or {}, pass_env=configured)
    return agent_environment(spec, CONTRACT, host=host, network=network, **options)


def test_an_empty_host_gives_the_contract_a_path_and_quiet_threads() -> None:
    env = environment(PATH)
    assert env == {**TOLD, "PATH": "/venv/bin:/usr/bin:/bin", "OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize(
    "name",
    [
        *("HOME", "USER", "LANG", "TZ", "TMPDIR", "TERM", "LC_ALL", "LC_CTYPE"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "HF_ENDPOINT"),
        *("OMP_NUM_THREADS", "OMP_WAIT_POLICY"),
    ],
)
def test_a_host_variable_on_the_list_is_passed(name: str) -> None:
    assert environment({**PATH, name: "value"})[name] == "value"


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "NVIDIA_API_KEY", "SSH_AUTH_SOCK"),
        *("POSTTRAIN_HOME", "POSTTRAIN_AGENTS", "AUTORL_FILE_PATH", "PYTHONPATH", "LD_PRELOAD", "BASH_ENV"),
        *("MAX_STEPS", "LOGNAME", "SHELL", "LANGUAGE", "XDG_RUNTIME_DIR", "TMUX", "HF_HOME"),
        *("http_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    ],
)
def test_any_other_host_variable_stays_out(name: str) -> None:
    assert name not in environment({**PATH, name: "value"})


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "ALL_PROXY", "ftp_proxy"])
def test_proxies_come_with_the_host_network_and_never_see_the_grading_server(name: str) -> None:
    env = environment({**PATH, name: "http://proxy:3128", "NO_PROXY": "intranet"}, network="host")
    assert env[name] == "http://proxy:3128"
    assert env["no_proxy"] == env["NO_PROXY"] == "intranet,127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("host", "env_vars", "configured", "passed", "expected"),
    [
        ({}, {"X": "agent"}, (), (), "agent"),
        ({"X": "host"}, {"X": "agent"}, (), (), "agent"),
        ({"X": "host"}, {}, ("X",), (), "host"),
        ({"X": "host"}, {}, (), ("X",), "host"),
        ({"X": "host"}, {"X": "agent"}, ("X",), (), "host"),
        ({"X": "host"}, {"X": "agent"}, (), ("X",), "host"),
        ({}, {"X": "agent"}, ("X",), ("X",), "agent"),
        ({}, {}, ("X",), (), None),
    ],
)
def test_later_layers_win(
    host: dict[str, str],
    env_vars: dict[str, str],
    configured: tuple[str, ...],
    passed: tuple[str, ...],
    expected: str | None,
) -> None:
    env = environment({**PATH, **host}, env_vars=env_vars, configured=configured, pass_env=passed)
    assert env.get("X") == expected


@pytest.mark.parametrize("name", sorted(TOLD))
def test_the_contract_wins_over_everything(name: str) -> None:
    env = environment({**PATH, name: "host"}, env_vars={name: "agent"}, configured=(name,), pass_env=(name,))
    assert env[name] == TOLD[name]


@pytest.mark.parametrize(
    ("host", "env_vars", "expected"),
    [
        ("/usr/bin:/venv/bin:/bin", {}, "/venv/bin:/usr/bin:/bin"),
        ("/usr/bin", {"PATH": "/opt/tool/bin"}, "/venv/bin:/opt/tool/bin"),
        ("", {}, "/venv/bin"),
    ],
)
def test_path_starts_with_our_python_once(host: str, env_vars: dict[str, str], expected: str) -> None:
    assert environment({"PATH": host}, env_vars=env_vars)["PATH"] == expected


def test_a_host_without_path_still_gives_the_system_folders() -> None:
    assert environment({})["PATH"].startswith("/venv/bin:/bin")


def test_home_and_tmpdir_can_be_those_of_the_view() -> None:
    env = environment(
        {**PATH, "HOME": "/root", "TMPDIR": "/scratch"}, home=Path("/home/agent"), tmpdir=Path("/tmp")
    )
    assert (env["HOME"], env["TMPDIR"]) == ("/home/agent", "/tmp")


def test_a_resumed_agent_is_told_so_and_a_first_start_is_not() -> None:
    assert "POSTTRAIN_RESUMED" not in CONTRACT.variables()
    second = Contract(**{**vars(CONTRACT), "resumed": 2})
    assert second.variables()["POSTTRAIN_RESUMED"] == "2"


@pytest.mark.parametrize(("name", "told"), [("A=B", "not the name"), ("", "not the name"), ("NO", "not set")])
def test_a_name_to_pass_that_is_none_or_unset_is_refused(name: str, told: str) -> None:
    with pytest.raises(UsageError, match=f"--pass-env.*{told}"):
        check_pass_env([name], {"YES": "1"})
