"""Code of a task folder inside the scorer: loaded under a name of its own, its printing counted, not kept."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from posttrain.core.errors import PluginError, boundary

EVAL = "eval.py"
_MODULE = "posttrain_task_eval"
_MUCH_PRINTED = 10_000


def load_eval(folder: Path) -> ModuleType:
    """The module eval.py of a task folder; PluginError if there is none, or if it raises."""
    where = f"{folder.name}/{EVAL}"
    specification = importlib.util.spec_from_file_location(_MODULE, folder / EVAL)
    if specification is None or specification.loader is None or not (folder / EVAL).is_file():
        raise PluginError(f"{where}: no such file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[_MODULE] = module
    sys.path.insert(0, str(folder))  # eval.py may import its neighbours, as it can in the ancestor
    with boundary(PluginError, where):
        specification.loader.exec_module(module)
    return module


def unit_number(value: Any) -> float | None:
    """The value as a float in [0, 1], None if it is none; numpy's numbers count."""
    try:
        with boundary(PluginError, "not a number"):
            number = float(value) if not isinstance(value, str) else math.nan
    except PluginError:
        return None
    return number if 0.0 <= number <= 1.0 else None


class Printed(io.TextIOBase):
    """A stream that counts what is written to it and keeps nothing."""

    def __init__(self) -> None:
        self.count = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.count += len(text)
        return len(text)

    @property
    def warnings(self) -> list[str]:
        return [f"{EVAL} printed {self.count} characters"] if self.count > _MUCH_PRINTED else []


@contextlib.contextmanager
def hushed() -> Iterator[Printed]:
    """What the block prints goes nowhere, and is counted."""
    with contextlib.redirect_stdout(Printed()) as printed:
        yield printed
