"""The append-only journal of finished iterations, and the results of the steps of an unfinished one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from posttrain.core.errors import PosttrainError
from posttrain.core.frozen import Frozen
from posttrain.infra.files import write_atomic, write_json
from posttrain.research.nodes import Node

_T = TypeVar("_T", bound=Frozen)


class Journal:
    """Nodes in order; a line is written whole and synced before the next iteration begins.

    The loop writes what it holds, and not to what it finds: scripts run as the same user, and one that
    damages the file must not cost the iterations before it.
    """

    def __init__(self, path: Path, *, torn: Path) -> None:
        """Reads what is there. From the first line on that is not the next iteration, all moves to `torn`."""
        self._path = path
        self._torn = torn
        path.parent.mkdir(parents=True, exist_ok=True)
        self.nodes, self._whole, found = _longest_beginning(path)
        self.moved = found - len(self.nodes)
        """Lines that were no iterations in order; results of their steps are kept, so little is lost."""
        self._put_right()

    def append(self, node: Node) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._put_right()
        line = node.model_dump_json().encode("utf-8") + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            rest = memoryview(line)
            while rest:  # of a disk that fills up, the first write takes a part and the second one says so
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._whole += line
        self.nodes.append(node)

    def _put_right(self) -> None:
        """Let the file hold what is known, and nothing else."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            raw = b""
        if raw == self._whole:
            return
        rest = b"" if self._whole.startswith(raw) else raw.removeprefix(self._whole)
        if rest:
            with self._torn.open("ab") as file:
                file.write(rest.removesuffix(b"\n") + b"\n")
        write_atomic(self._path, self._whole)


def _longest_beginning(path: Path) -> tuple[list[Node], bytes, int]:
    """Iterations 1, 2, … as far as the file holds them, their bytes, and how many whole lines there are."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return [], b"", 0
    lines = raw[: raw.rfind(b"\n") + 1].split(b"\n")[:-1]
    nodes: list[Node] = []
    whole = b""
    for line in lines:
        try:
            node = Node.model_validate_json(line)
        except ValidationError:
            break
        if node.number != len(nodes) + 1 or (node.parent or 0) >= node.number:
            break
        nodes.append(node)
        whole += line + b"\n"
    return nodes, whole, len(lines)


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
