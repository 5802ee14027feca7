"""What the doctor says, and what it works on: a folder as it is and the draft of a mended copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from posttrain.checkpoints.headers import Weights
from posttrain.checkpoints.matching import Head, Plan
from posttrain.core.frozen import Frozen

Level = Literal["fault", "warning", "note"]
"""fault: some stack refuses the folder or writes other texts than the model that was trained; warning: it
may, or wastes much; note: good to know."""


class Finding(Frozen):
    """One thing about a folder."""

    code: str
    level: Level
    text: str
    remedy: str = ""
    """What to do about it, in a sentence."""
    mended: bool = False
    """Whether the copy that `--fix` writes is free of it."""


@dataclass(frozen=True)
class Patient:
    """A folder as it is, and the base it was made from, if that is known."""

    folder: Path
    names: frozenset[str]
    """Files in the folder itself."""
    base: Path | None = None

    @classmethod
    def of(cls, folder: Path, base: Path | None) -> Patient:
        names = frozenset(entry.name for entry in folder.iterdir() if entry.is_file())
        return cls(folder, names, base)

    def has(self, name: str) -> bool:
        return name in self.names

    def base_has(self, name: str) -> bool:
        return self.base is not None and (self.base / name).is_file()

    def read(self, name: str) -> dict[str, Any] | None:
        """A file of the folder as a JSON object; None if it is none."""
        return read_object(self.folder / name)

    def read_base(self, name: str) -> dict[str, Any] | None:
        return None if self.base is None else read_object(self.base / name)


@dataclass
class Draft:
    """The mended copy, as far as it is known."""

    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """JSON files by name, as they will be written."""
    texts: dict[str, str] = field(default_factory=dict)
    """Other text files by name."""
    from_base: set[str] = field(default_factory=set)
    """Files that are copied from the base."""
    from_folder: set[str] = field(default_factory=set)
    """Files that are copied as they are."""
    weights: Weights | None = None
    """Where no base is known: the folder's tensors under their own names."""
    plan: Plan | None = None
    head: Head | None = None
    own_head: bool = False
    """The submission has an output head of its own although the base ties it."""
    complete: bool = True
    """Whether weights can be written at all."""

    def drop(self, name: str) -> None:
        self.documents.pop(name, None)
        self.texts.pop(name, None)
        self.from_base.discard(name)
        self.from_folder.discard(name)

    def take_from_base(self, name: str) -> None:
        self.drop(name)
        self.from_base.add(name)


def read_object(path: Path) -> dict[str, Any] | None:
    """A file as a JSON object; None if it is none or cannot be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def listed(names: Mapping[str, Any] | list[str] | tuple[str, ...] | set[str], most: int = 6) -> str:
    """The first of some names, and how many more there are."""
    ordered = sorted(names)
    more = f", … {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more
