"""Agent folders are found, read, and refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.agents.registry import BUILT_IN, AgentRegistry
from posttrain.core.errors import UsageError
from posttrain.testing.agents import copy_ancestor_agent, write_toy_agent


def agent(root: Path, name: str, config: str, *, start: str | None = "start.sh") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config, "utf-8")
    if start:
        (folder / start).write_text("exit 0\n")
    return folder


def test_only_name_and_start_are_needed(tmp_path: Path) -> None:
    folder = agent(tmp_path, "mine", 'name: "My Agent"\nstart: "go.sh"\n', start="go.sh")
    spec = AgentRegistry([tmp_path]).load("mine")
    assert (spec.id, spec.name, spec.start, spec.folder) == ("mine", "My Agent", "go.sh", folder)


def test_a_foreign_folder_may_use_the_network_and_is_no_control(tmp_path: Path) -> None:
    copy_ancestor_agent(tmp_path)
    spec = AgentRegistry([tmp_path]).load("ancestor")
    assert (spec.network, spec.control, spec.env_vars, spec.pass_env) == ("host", False, {}, ())


def test_every_built_in_agent_loads_with_every_profile() -> None:
    registry = AgentRegistry()
    assert registry.broken() == {}
    assert {"noop", "recipe", "example_agent", "random_reward"} <= set(registry.names())
    assert registry.load("example_agent:fast").env_vars["MAX_STEPS"] == "4"
    assert [name for name in registry.names() if registry.load(name).control] == [
        "noop",
        "random_reward",
        "recipe",
        "sweep",
    ]


def test_an_alias_finds_the_folder() -> None:
    assert AgentRegistry().load("example").id == "example_agent"
    assert AgentRegistry().load("example:fast").id == "example_agent:fast"


def test_a_folder_wins_over_an_alias_and_an_earlier_root_over_a_later(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    agent(first, "example", "name: First\nstart: start.sh\n")
    agent(second, "example", "name: Second\nstart: start.sh\n")
    assert AgentRegistry([first, second, BUILT_IN]).load("example").name == "First"


def test_numbers_in_env_vars_become_their_text(tmp_path: Path) -> None:
    agent(tmp_path, "a", "name: A\nstart: start.sh\nenv_vars: {N: 3, RATE: 0.1, S: '1e-5', Z: ''}\n")
    assert AgentRegistry([tmp_path]).load("a").env_vars == {"N": "3", "RATE": "0.1", "S": "1e-5", "Z": ""}


def test_a_profile_is_laid_over_the_variables(tmp_path: Path) -> None:
    agent(
        tmp_path, "a", "name: A\nstart: start.sh\nenv_vars: {N: 3, M: 1}\nprofiles: {fast: {N: 1}, same: }\n"
    )
    registry = AgentRegistry([tmp_path])
    assert registry.load("a:fast").env_vars == {"N": "1", "M": "1"}
    assert registry.load("a:same").env_vars == registry.load("a").env_vars
    assert registry.load("a:fast").profile == "fast"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("start: start.sh\n", "name: Field required"),
        ("name: A\nstart: other.sh\n", "there is no file 'other.sh'"),
        ("name: A\nstart: ../start.sh\n", "inside the agent's folder"),
        ("name: A\nstart: /bin/sh\n", "inside the agent's folder"),
        (
            "name: A\nstart: start.sh\nenv_vars: {X: true}\n",
            "env_vars.X: True is neither a string nor a number",
        ),
        ("name: A\nstart: start.sh\nenv_vars: {X: [1]}\n", "env_vars.X"),
        ("name: A\nstart: start.sh\nenv_vars: {X: }\n", "env_vars.X"),
        ("name: A\nstart: start.sh\nenv_vars: {'X=1': a}\n", "not the name of an environment variable"),
        ("name: A\nstart: start.sh\nenv_vars: 3\n", "env_vars"),
        ("name: A\nstart: start.sh\nnetwork: wifi\n", "network"),
        ("name: A\nstart: start.sh\nprofiles: {'a:b': {}}\n", "'a:b' is not a name"),
        ("name: A\nstart: start.sh\nsandbox: {bind: [../x]}\n", "sandbox.bind.0"),
        ("name: A\nstart: start.sh\npass_envs: [X]\n", "pass_envs: there is no such field"),
        ("- a\n- b\n", "not a mapping"),
        ("", "not a mapping"),
        ("name: 'A\nstart: [\n", "config.yaml"),
    ],
)
def test_a_broken_folder_is_listed_with_its_reason_and_breaks_nothing_else(
    tmp_path: Path, config: str, told: str
) -> None:
    agent(tmp_path, "bad", config)
    agent(tmp_path, "good", "name: Good\nstart: start.sh\n")
    registry = AgentRegistry([tmp_path])
    assert registry.names() == ["good"]
    assert list(registry.broken()) == ["bad"]
    assert told in registry.broken()["bad"]
    with pytest.raises(UsageError, match="agent 'bad' is broken") as refusal:
        registry.load("bad")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["nobody", "../noop", "..", ".", "", "a/b", "/etc", "noop\n", ":fast", "-x"])
def test_an_unknown_or_impossible_name_is_answered_with_the_known_ones(tmp_path: Path, name: str) -> None:
    agent(tmp_path, "good", "name: Good\nstart: start.sh\n")
    with pytest.raises(UsageError, match=r"known agents: good$") as refusal:
        AgentRegistry([tmp_path]).load(name)
    assert "\n" not in str(refusal.value)


def test_an_unknown_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no profile 'slow'; its profiles: .*fast"):
        AgentRegistry().load("example_agent:slow")
    with pytest.raises(UsageError, match="no profile ''"):
        AgentRegistry().load("noop:")


def test_a_missing_root_and_stray_files_are_no_agents(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("x")
    (tmp_path / "empty").mkdir()
    registry = AgentRegistry([tmp_path / "nowhere", tmp_path])
    assert (registry.names(), registry.broken()) == ([], {})


def test_the_toy_agent_is_a_folder_like_any_other(tmp_path: Path) -> None:
    write_toy_agent(tmp_path, "toy", [{"do": "say", "text": "hello"}], env_vars={"A": "b"})
    assert AgentRegistry([tmp_path]).load("toy").env_vars == {"A": "b"}
