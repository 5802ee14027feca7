"""What ships of each tool: which Pythons it runs on, its torch, its lock, and how to see that it works."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import Field

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.infra.digests import digest_value

_FOLDER = Path(__file__).parent


class Recipe(Frozen):
    """One `<name>.yaml`."""

    name: str
    title: str
    python: tuple[str, ...]
    """Versions it is locked for, as `3.12`."""
    torch: str | None = None
    """Installed before everything else, as this requirement; None for a tool without torch."""
    imports: tuple[str, ...]
    """Modules that can be imported once the environment works."""
    gigabytes: float = Field(gt=0)
    """Disk that a complete environment takes."""
    folder: Path = _FOLDER
    """Where its lock lies."""

    @property
    def lock(self) -> Path:
        """Exact versions of everything but torch and CUDA packages."""
        return self.folder / f"{self.name}.txt"

    @property
    def digest(self) -> str:
        """Of all that decides what is installed."""
        return digest_value(
            {**self.model_dump(mode="json", exclude={"folder"}), "lock": self.lock.read_text("utf-8")}
        )

    @property
    def interpreter_variable(self) -> str:
        """Names an interpreter that is used instead of an environment of ours."""
        return f"{self.name.upper()}_PYTHON"

    @property
    def conda_variable(self) -> str:
        """Names a conda environment that is used instead."""
        return f"CONDA_ENV_{self.name.upper()}"


def names() -> tuple[str, ...]:
    """The tools there are recipes for."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def recipe(name: str, *, field: str = "NAME") -> Recipe:
    """The recipe of a tool; UsageError naming the known ones, with `field` as what was wrong."""
    if name not in names():
        raise UsageError(f"{field}: no tool environment {name!r}. Known: {', '.join(names())}")
    data = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text("utf-8"))
    return Recipe.model_validate({**data, "name": name})
