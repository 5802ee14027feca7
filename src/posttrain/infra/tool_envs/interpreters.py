"""Which Python an environment is made with, found by asking each candidate who it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen

_ASK = (
    "import json, sys; print(json.dumps({"
    "'version': '%d.%d' % sys.version_info[:2], 'prefixes': sorted({sys.prefix, sys.base_prefix})}))"
)
_CAN_MAKE = "import ensurepip, venv"
_PATIENCE_S = 60
_CONDA_ROOTS = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda")


class Interpreter(Frozen):
    """A Python that answers."""

    path: Path
    version: str
    """As `3.12`."""
    prefixes: tuple[Path, ...]
    """The folders it consists of: its own and, for an environment, that of the Python it was made with."""


def ask(path: Path) -> Interpreter | None:
    """Who the program at `path` says it is; None if it is no Python that runs."""
    told = output_of([str(path), "-c", _ASK])
    try:
        return None if told is None else Interpreter.model_validate({"path": path, **json.loads(told)})
    except (ValueError, TypeError):  # no JSON, or none that are fields
        return None


def choose(versions: Sequence[str], *, wanted: Path | None, host: Mapping[str, str]) -> Interpreter:
    """One of the `versions` that can make environments: `wanted` or, without it, the first that is found.

    UsageError says what was looked for, or what is wrong with the wanted one.
    """
    if wanted is not None:
        found = ask(wanted)
        if found is None or found.version not in versions:
            what = "does not run" if found is None else f"is Python {found.version}"
            raise UsageError(f"--python: {wanted} {what}; one of {', '.join(versions)} is needed")
        return found
    for path in _candidates(versions, host):
        found = ask(path)
        if (
            found is not None
            and found.version in versions
            and output_of([str(path), "-c", _CAN_MAKE]) is not None
        ):
            return found
    raise UsageError(
        f"--python: no Python {' or '.join(versions)} with venv was found here; install one (on Debian and "
        "Ubuntu also python3-venv) and name it: --python /path/to/python"
    )


def _candidates(versions: Sequence[str], host: Mapping[str, str]) -> Iterator[Path]:
    """The Python in use, those on the path, and those that pyenv and uv keep beside it."""
    yield Path(sys.executable)
    for version in versions:
        found = shutil.which(f"python{version}", path=host.get("PATH"))
        if found:
            yield Path(found)
    home = Path(host.get("HOME", "/nonexistent"))
    pyenv = Path(host.get("PYENV_ROOT") or home / ".pyenv")
    for version in versions:
        yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)
        yield from sorted(
            home.glob(f".local/share/uv/python/cpython-{version}.*/bin/python{version}"), reverse=True
        )


def named(
    interpreter_variable: str, conda_variable: str, *, host: Mapping[str, str]
) -> tuple[Interpreter, str] | None:
    """The interpreter that the operator's variables name, and the variable; None if neither is set.

    UsageError for a variable that names nothing that runs.
    """
    if path := host.get(interpreter_variable, "").strip():
        found = ask(Path(os.path.expandvars(path)).expanduser().absolute())
        if found is None:
            raise UsageError(f"{interpreter_variable}: {path} is not a Python that runs; correct or unset it")
        return found, interpreter_variable
    if name := host.get(conda_variable, "").strip():
        for root in _conda_roots(host):
            found = ask(root / "envs" / name / "bin" / "python")
            if found is not None:
                return found, conda_variable
    return None


def _conda_roots(host: Mapping[str, str]) -> Iterator[Path]:
    if program := host.get("CONDA_EXE"):
        yield Path(program).parent.parent
    if prefix := host.get("CONDA_PREFIX"):
        yield Path(prefix)
        yield Path(prefix).parent.parent  # of an environment that is active
    home = host.get("HOME", "")
    yield from (Path(root.replace("~", home, 1)) for root in _CONDA_ROOTS)


def output_of(argv: Sequence[str]) -> str | None:
    """What a command prints, without its last line end; None if it cannot be run or fails."""
    try:
        result = subprocess.run(
            argv, capture_output=True, timeout=_PATIENCE_S, check=False, stdin=subprocess.DEVNULL, text=True
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return result.stdout.rstrip("\n") if result.returncode == 0 else None
