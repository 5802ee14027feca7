"""Tool environments: found, made, finished after a kill, and named with their command where missing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra.tool_envs import interpreters
from posttrain.infra.tool_envs.environments import find, listing, read_manifest, require
from posttrain.infra.tool_envs.install import install
from posttrain.infra.tool_envs.recipes import Recipe, names, recipe

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
HOST = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def tiny(folder: Path, *lines: str, imports: tuple[str, ...] = ("json",)) -> Recipe:
    """A tool of the standard library alone."""
    (folder / "tiny.txt").write_text("\n".join(("# a lock", *lines)) + "\n")
    return Recipe(name="tiny", title="Tiny", python=(HERE,), imports=imports, gigabytes=0.01, folder=folder)


@pytest.mark.parametrize("name", names())
def test_every_lock_is_exact_and_leaves_torch_out(name: str) -> None:
    lines = [
        line
        for line in recipe(name).lock.read_text("utf-8").splitlines()
        if line.strip()[:1] not in {"", "#"}
    ]
    assert lines
    loose = [line for line in lines if "==" not in line]
    assert not loose
    heavy = [line for line in lines if line.lower().startswith(("torch==", "nvidia", "cuda", "triton"))]
    assert not heavy


def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="opencompass"):
        recipe("opencompas")


def test_a_missing_tool_is_named_with_the_command_that_makes_it(lab: LabPaths) -> None:
    with pytest.raises(UsageError, match="posttrain env install opencompass"):
        require("opencompass", lab, {}, needed_for="this task", field="--task")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabPaths, Recipe, list[str]]:
    """A tool made once, and what was said meanwhile; tests work on copies."""
    place = tmp_path_factory.mktemp("made")
    lab, tool, said = LabPaths(place), tiny(place), []
    install(tool, lab, host=HOST, wanted=Path(sys.executable), say=said.append)
    return lab, tool, said


@pytest.fixture
def begun(made: tuple[LabPaths, Recipe, list[str]], lab: LabPaths) -> LabPaths:
    """A lab in which an installation was killed: everything is there but the manifest."""
    shutil.copytree(made[0].tool_env("tiny"), lab.tool_env("tiny"), symlinks=True)
    (lab.tool_env("tiny") / ".manifest.json").unlink()
    return lab


def test_a_tool_is_made_and_then_left_alone(made: tuple[LabPaths, Recipe, list[str]]) -> None:
    lab, tool, said = made
    again: list[str] = []
    found = install(tool, lab, host=HOST, wanted=None, say=again.append)
    assert found.python == lab.tool_env("tiny") / "bin" / "python"
    assert found.variable == ("TINY_PYTHON", str(found.python))
    assert "pip" in found.packages
    assert lab.tool_env("tiny") in found.shown
    assert said
    assert not again


def test_what_was_killed_half_way_is_no_tool_and_goes_on_where_it_was(
    begun: LabPaths, tmp_path: Path
) -> None:
    tool = tiny(tmp_path)
    assert find(tool, begun, HOST) is None
    marker = begun.tool_env("tiny") / "pyvenv.cfg"
    before = marker.stat().st_mtime_ns
    install(tool, begun, host=HOST, wanted=None, say=lambda _: None)
    assert find(tool, begun, HOST) is not None
    assert marker.stat().st_mtime_ns == before


def test_an_environment_whose_python_is_gone_is_made_anew(begun: LabPaths, tmp_path: Path) -> None:
    python = begun.tool_env("tiny") / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python")
    found = install(tiny(tmp_path), begun, host=HOST, wanted=None, say=lambda _: None)
    assert interpreters.ask(found.python) is not None


def test_a_package_that_cannot_be_had_is_an_error_with_its_log(begun: LabPaths, tmp_path: Path) -> None:
    tool = tiny(tmp_path, f"{tmp_path}/missing-1.0-py3-none-any.whl")
    with pytest.raises(InfrastructureError, match=r"install\.log"):
        install(tool, begun, host=HOST, wanted=None, say=lambda _: None)
    assert find(tool, begun, HOST) is None
    assert (begun.tool_env("tiny") / "install.log").is_file()


def test_a_tool_that_cannot_be_imported_is_no_environment(begun: LabPaths, tmp_path: Path) -> None:
    tool = tiny(tmp_path, imports=("no_such_module",))
    with pytest.raises(InfrastructureError, match="no_such_module"):
        install(tool, begun, host=HOST, wanted=None, say=lambda _: None)
    assert read_manifest(begun.tool_env("tiny")) is None


def test_an_interpreter_that_a_variable_names_is_used_as_it_is(lab: LabPaths) -> None:
    host = {**HOST, "OPENHANDS_PYTHON": sys.executable}
    found = find(recipe("openhands"), lab, host)
    assert found is not None
    assert (found.python, found.origin) == (Path(sys.executable), "OPENHANDS_PYTHON")
    assert Path(sys.prefix) in found.shown
    with pytest.raises(UsageError, match="OPENHANDS_PYTHON"):
        install(recipe("openhands"), lab, host=host, wanted=None, say=lambda _: None)


def test_a_conda_environment_is_found_by_its_name(lab: LabPaths, tmp_path: Path) -> None:
    place = tmp_path / "conda" / "envs" / "mine" / "bin"
    place.mkdir(parents=True)
    (place / "python").symlink_to(sys.executable)
    host = {**HOST, "CONDA_ENV_OPENHANDS": "mine", "CONDA_EXE": str(tmp_path / "conda/bin/conda")}
    found = find(recipe("openhands"), lab, host)
    assert found is not None
    assert found.python == place / "python"


@pytest.mark.parametrize("value", ["/nonexistent/python", "/bin/true", "/etc/passwd"])
def test_a_variable_that_names_no_python_is_named(lab: LabPaths, value: str) -> None:
    host = {**HOST, "OPENCOMPASS_PYTHON": value}
    with pytest.raises(UsageError, match="OPENCOMPASS_PYTHON"):
        require("opencompass", lab, host, needed_for="this", field="--task")
    states = {row.name: row.state for row in listing(lab, host)}
    assert "OPENCOMPASS_PYTHON" in states["opencompass"], "the list goes on and says so"


def test_a_python_of_another_version_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=re.escape(f"is Python {HERE}; one of 2.7 is needed")):
        interpreters.choose(["2.7"], wanted=Path(sys.executable), host=HOST)
    with pytest.raises(UsageError, match=r"no Python 2\.7"):
        interpreters.choose(["2.7"], wanted=None, host=HOST)


def test_a_shim_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    """pyenv leaves `python3.12` on the PATH whether or not that version is active."""
    shim = tmp_path / f"python{HERE}"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    found = interpreters.choose([HERE], wanted=None, host={"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert found.path != shim


def test_the_command_lists_tools_as_json_and_refuses_unknown_ones(lab: LabPaths) -> None:
    def posttrain(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "POSTTRAIN_HOME": str(lab.home)}
        return subprocess.run(
            [sys.executable, "-m", "posttrain", "env", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=lab.home,
        )

    listed = json.loads(posttrain("list", "--json").stdout)
    assert {row["name"] for row in listed} == {"lm_eval", "opencompass", "openhands"}
    assert {row["state"] for row in listed} == {"missing"}
    done = posttrain("install", "nothing")
    assert done.returncode == 2
    assert "Known: lm_eval, opencompass, openhands" in done.stderr
    done = posttrain("install", "opencompass", "--python", "/bin/true")
    assert done.returncode == 2
    assert "--python: /bin/true does not run" in done.stderr
    assert not lab.tool_env("opencompass").exists()


@pytest.mark.parametrize("told", ["[]", "1", "null", '{"version": 3}'])
def test_a_program_that_answers_something_else_is_no_python(tmp_path: Path, told: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{told}'\n")
    program.chmod(0o755)
    assert interpreters.ask(program) is None


INSTALL = """
import json, os, sys
from pathlib import Path
from posttrain.core.paths import LabPaths
from posttrain.infra.tool_envs.install import install
from posttrain.infra.tool_envs.recipes import Recipe
tool = Recipe.model_validate(json.loads(sys.argv[2]))
found = install(tool, LabPaths(Path(sys.argv[1])), host=dict(os.environ), wanted=None, say=print)
print(found.python)
"""


def installer(lab: LabPaths, tool: Recipe) -> subprocess.Popen[str]:
    """`env install` of a tool of ours, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL, str(lab.home), tool.model_dump_json()],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_two_at_once_make_one_environment(begun: LabPaths, tmp_path: Path) -> None:
    both = [installer(begun, tiny(tmp_path)) for _ in range(2)]
    told = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert sorted("trying it" in text for text in told) == [False, True], told


@pytest.mark.slow
def test_an_installation_that_is_killed_leaves_no_installer_and_no_tool(
    lab: LabPaths, tmp_path: Path
) -> None:
    tool, folder = tiny(tmp_path), lab.tool_env("tiny")
    with installer(lab, tool) as process:
        until(lambda: (folder / "pyvenv.cfg").exists())
        process.kill()
    until(lambda: not [line for line in command_lines() if str(folder) in line])
    assert find(tool, lab, HOST) is None
    found = install(tool, lab, host=HOST, wanted=None, say=lambda _: None)
    assert interpreters.output_of([str(found.python), "-m", "pip", "--version"]) is not None


def until(done: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


@pytest.mark.slow
@pytest.mark.network
def test_opencompass_is_installed_for_real(lab: LabPaths) -> None:
    made = install(recipe("opencompass"), lab, host=dict(os.environ), wanted=None, say=print)
    assert made.packages["opencompass"] == "0.5.4"
    assert made.packages["transformers"].startswith("4.57")
