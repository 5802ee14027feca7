"""Making a tool's environment: torch first, then the locked rest, a trial import, and last the manifest.

Every step leaves something that the next attempt finds, so an installation that was killed goes on
where it was.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra.fetching import child_environment, run_tool
from posttrain.infra.files import write_atomic, write_json
from posttrain.infra.locks import held
from posttrain.infra.tool_envs import interpreters
from posttrain.infra.tool_envs.environments import MANIFEST, EnvManifest, ToolEnv, find, read_manifest
from posttrain.infra.tool_envs.interpreters import Interpreter
from posttrain.infra.tool_envs.recipes import Recipe

Say = Callable[[str], None]

_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_PROBE_S = 5
_FREEZE = (
    "import importlib.metadata as m, json; "
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}))"
)
_TORCH_VERSION = "import importlib.metadata as m, torch; print(m.version('torch'))"


def install(
    tool: Recipe, lab: LabPaths, *, host: Mapping[str, str], wanted: Path | None, say: Say
) -> ToolEnv:
    """The complete environment of a tool, made now unless it is there already.

    UsageError for what the operator can mend (no Python, no space, a variable that names another one),
    InfrastructureError for an installer that fails; installing again goes on from there.
    """
    named = interpreters.named(tool.interpreter_variable, tool.conda_variable, host=host)
    if named is not None:
        raise UsageError(
            f"{named[1]}: names {named[0].path}, so no environment is made; unset it to have one"
        )
    lab.envs.mkdir(parents=True, exist_ok=True)
    with held(lab.envs / f".{tool.name}.lock", f"the environment {tool.name}", say):
        manifest = read_manifest(lab.tool_env(tool.name))
        if manifest is None or manifest.recipe != tool.digest:
            _Making(tool, lab.tool_env(tool.name), host, say).make(wanted)
        found = find(tool, lab, host)
    assert found is not None
    return found


@dataclass(frozen=True)
class _Making:
    tool: Recipe
    folder: Path
    host: Mapping[str, str]
    say: Say

    def make(self, wanted: Path | None) -> None:
        tool, folder = self.tool, self.folder
        interpreter = self._interpreter(wanted)
        self._require_space()
        (folder / MANIFEST).unlink(missing_ok=True)
        if interpreter is not None:
            self._new_environment(interpreter)
        constraint = self._torch() if tool.torch else None
        self._rest(constraint)
        self.say(f"{tool.name}: trying it")
        self._python("-c", f"import {', '.join(tool.imports)}")
        write_json(folder / MANIFEST, self._manifest())

    def _interpreter(self, wanted: Path | None) -> Interpreter | None:
        """What a new environment is made with; None: the one that was begun here is gone on with."""
        begun = self._begun()
        if begun is not None and wanted is None:
            return None
        interpreter = interpreters.choose(self.tool.python, wanted=wanted, host=self.host)
        return None if begun is not None and begun.version == interpreter.version else interpreter

    def _begun(self) -> Interpreter | None:
        """The Python of an environment that was begun here, if it fits the tool and can install packages.

        A kill while it was made leaves a Python without pip, whose folder has to go.
        """
        found = interpreters.ask(self._bin("python")) if self._bin("pip").exists() else None
        fits = found is not None and found.version in self.tool.python
        return found if fits and self._answer("-c", "import pip") is not None else None

    def _new_environment(self, interpreter: Interpreter) -> None:
        self.say(f"{self.tool.name}: an environment of {interpreter.path} in {self.folder}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._run([str(interpreter.path), "-m", "venv", str(self.folder)])

    def _torch(self) -> Path:
        """Install torch unless it is there, and pin it: no later package may replace it."""
        assert self.tool.torch is not None
        version = self._answer("-c", _TORCH_VERSION)
        if not version:
            options, how = self._torch_source()
            self.say(f"{self.tool.name}: {self.tool.torch} {how}")
            self._python("-m", "pip", "install", "--no-input", *options, self.tool.torch)
            version = self._answer("-c", _TORCH_VERSION)
        if not version:
            raise InfrastructureError(f"{self.tool.name}: torch was installed and cannot be imported")
        constraint = self.folder / "torch.constraint"
        write_atomic(constraint, f"torch=={version}\n")
        return constraint

    def _torch_source(self) -> tuple[list[str], str]:
        """CUDA where there is a driver, else a CPU build where its index answers."""
        if Path("/proc/driver/nvidia/version").exists() or shutil.which(
            "nvidia-smi", path=self.host.get("PATH")
        ):
            return [], "with CUDA: an NVIDIA driver is here"
        index = self.host.get("TORCH_CPU_INDEX") or _CPU_INDEX
        if _answers(f"{index}/torch/"):
            return ["--index-url", index], f"as CPU build from {index}"
        return [], f"as the default index has it: no NVIDIA driver, and {index} does not answer"

    def _rest(self, constraint: Path | None) -> None:
        """The locked rest, by uv where it is there."""
        lock = self.tool.lock
        self.say(f"{self.tool.name}: {len(_requirements(lock))} locked packages, some minutes")
        pinned = ["--constraint", str(constraint)] if constraint else []
        uv = shutil.which("uv", path=self.host.get("PATH"))
        if uv is not None:
            self._run([uv, "pip", "install", "--python", str(self._bin("python")), *pinned, "-r", str(lock)])
        else:
            self._python("-m", "pip", "install", "--no-input", *pinned, "-r", str(lock))

    def _manifest(self) -> EnvManifest:
        now, packages = interpreters.ask(self._bin("python")), self._answer("-c", _FREEZE)
        if now is None or packages is None:
            raise InfrastructureError(f"{self.tool.name}: {self._bin('python')} does not say what it is")
        return EnvManifest(
            tool=self.tool.name,
            recipe=self.tool.digest,
            python=now.version,
            prefixes=now.prefixes,
            packages=json.loads(packages),
        )

    def _require_space(self) -> None:
        free = shutil.disk_usage(self.folder.parent).free
        if free < self.tool.gigabytes * 1e9 and not self.folder.is_dir():
            raise UsageError(
                f"POSTTRAIN_HOME: {self.tool.name} needs {self.tool.gigabytes:.1f} GB in "
                f"{self.folder.parent}, {free / 1e9:.1f} GB are free"
            )

    def _python(self, *arguments: str) -> None:
        self._run([str(self._bin("python")), *arguments])

    def _run(self, argv: Sequence[str]) -> None:
        """What an installer says goes to install.log in the folder."""
        log = self.folder / "install.log"
        try:
            run_tool(argv, environment=child_environment(self.host), log=log)
        except InfrastructureError as error:
            raise InfrastructureError(f"{self.tool.name}: {error} (all of it: {log})") from error

    def _answer(self, *arguments: str) -> str | None:
        """What the environment's Python prints, without its line end; None if it fails."""
        return interpreters.output_of([str(self._bin("python")), *arguments])

    def _bin(self, name: str) -> Path:
        return self.folder / "bin" / name


def _requirements(lock: Path) -> list[str]:
    lines = (line.strip() for line in lock.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _answers(url: str) -> bool:
    """Whether an index can be reached."""
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_S):  # noqa: S310 - https, from the operator
            return True
    except (OSError, ValueError):
        return False
