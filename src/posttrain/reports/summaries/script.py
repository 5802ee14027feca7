"""The training scripts of an agent as texts, never executed, and which of them an iteration speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

SUFFIXES = (".py", ".yaml", ".yml", ".json", ".sh")
_NAMED = re.compile(r"(?<![\w./-])[\w./-]+\.(?:py|ya?ml|json|sh)\b", re.ASCII)
"""It begins where a word does: a long word would be searched from each of its letters."""
_IMPORTED = re.compile(r"^\s*(?:from|import)\s+\.?([A-Za-z_]\w*)", re.MULTILINE)
_USUAL = "train.py"
NOT_SCRIPTS = frozenset({"scores.json", "run_meta.json", "metrics.json", "config.json", "settings.json"})


@dataclass(frozen=True)
class Script:
    """One file below code/."""

    name: str
    """Relative to the workspace: `code/train.py`."""
    text: str
    changed: float | None = None
    """Unix seconds of its last change, if known."""

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix


def names_in(text: str) -> list[str]:
    """Names of script files that a text mentions."""
    found = (match.group().lstrip("./-") for match in _NAMED.finditer(text))
    return [name for name in dict.fromkeys(found) if PurePosixPath(name).name not in NOT_SCRIPTS]


def spoken_of(text: str, scripts: Sequence[Script]) -> list[Script]:
    """The scripts that a text means: those it names, else train.py, else all, with what they import."""
    named = [script for script in scripts if any(is_named(script, name) for name in names_in(text))]
    if not named:
        named = [script for script in scripts if PurePosixPath(script.name).name == _USUAL]
    return with_imports(named, scripts) if named else list(scripts)


def is_named(script: Script, name: str) -> bool:
    """Whether a name, with or without its folders, means a script."""
    wanted, path = PurePosixPath(name).parts, PurePosixPath(script.name).parts
    return path[-len(wanted) :] == wanted


def with_imports(chosen: Iterable[Script], scripts: Sequence[Script]) -> list[Script]:
    """The scripts, with the files beside them that they import or read as configuration."""
    waiting, found = list(chosen), dict[str, Script]()
    while waiting:
        script = waiting.pop(0)
        if script.name in found:
            continue
        found[script.name] = script
        modules = set(_IMPORTED.findall(script.text)) if script.suffix == ".py" else set()
        mentioned = names_in(script.text)
        for other in scripts:
            path = PurePosixPath(other.name)
            imported = path.suffix == ".py" and (path.stem in modules or path.parent.name in modules)
            if imported or any(is_named(other, name) for name in mentioned):
                waiting.append(other)
    return list(found.values())


def plain_lines(text: str) -> list[str]:
    """The lines of code with their spaces evened out, blank ones left out: layout proves nothing."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
