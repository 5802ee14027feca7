"""The append-only journal of finished iterations, and the results of the steps of an unfinished one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from posttrain.core.errors import PosttrainError
from posttrain.core.frozen import Frozen
from posttrain.infra.files import write_json
from posttrain.research.nodes import Node

_T = TypeVar("_T", bound=Frozen)


class Journal:
    """Nodes in order; a line is written whole and synced before the next iteration begins."""

    def __init__(self, path: Path, *, torn: Path) -> None:
        """Reads what is there. What a death left of a last line moves to `torn`."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend(path, torn)
        self.nodes: list[Node] = list(read_journal(path))

    def append(self, node: Node) -> None:
        line = node.model_dump_json().encode("utf-8") + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.nodes.append(node)


def read_journal(path: Path) -> tuple[Node, ...]:
    """All finished iterations; an unfinished last line is none. PosttrainError names a bad line."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return ()
    nodes = []
    for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            nodes.append(Node.model_validate_json(line))
        except ValidationError as error:
            raise PosttrainError(f"{path}:{number}: no iteration: {error.errors()[0]['msg']}") from error
    return tuple(nodes)


def _mend(path: Path, torn: Path) -> None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        with torn.open("ab") as file:
            file.write(raw[whole:] + b"\n")
        os.truncate(path, whole)


class Steps:
    """Results of one iteration's steps: a step that is done is not done again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def once(self, name: str, kind: type[_T], do: Callable[[], _T]) -> _T:
        """The kept result of the step, else that of `do`, which is then kept."""
        path = self._folder / f"{name}.json"
        kept = _read(path, kind)
        if kept is not None:
            return kept
        result = do()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
        return result


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
