"""New plugin folders that work as they are: copies of the scaffolds that ship."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Literal

import posttrain.agents
import posttrain.benchmarks
from posttrain.core.errors import UsageError
from posttrain.infra.files import write_atomic

Judging = Literal["choice", "per_sample", "own"]
_TASK = Path(posttrain.benchmarks.__file__).parent / "_scaffold"
_AGENT = Path(posttrain.agents.__file__).parent / "_scaffold"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", re.ASCII)
_STOCK = re.compile(r"^evaluator: .*\n^evaluator_settings: .*\n", re.MULTILINE)


def new_task(root: Path, name: str, *, judging: Judging) -> Path:
    """The folder `root/name`: a small task, with an eval.py unless a stock evaluator judges."""
    folder = _new(root, name)
    for path in _files(_TASK):
        if not path.name.startswith("eval."):
            shutil.copyfile(path, folder / path.name)
    if judging != "choice":
        shutil.copyfile(_TASK / f"eval.{judging}.py", folder / "eval.py")
        manifest = folder / "benchmark.yaml"
        line = f"{f'evaluator: {judging}':<36}# how an answer is judged: eval.py\n"
        write_atomic(manifest, _STOCK.sub(line, manifest.read_text("utf-8")))
    return folder


def new_agent(root: Path, name: str) -> Path:
    """The folder `root/name`: an agent that fine-tunes for half of its time and hands in once."""
    folder = _new(root, name)
    for path in _files(_AGENT):
        shutil.copyfile(path, folder / path.name)
    (folder / "start.sh").chmod(0o755)
    return folder


def _new(root: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"NAME: {name!r}: letters, digits, '.', '_' and '-' only, the first a letter or digit"
        )
    folder = root / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"NAME: {folder} exists already") from error
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from error
    return folder


def _files(scaffold: Path) -> list[Path]:
    return [path for path in sorted(scaffold.iterdir()) if path.is_file()]
