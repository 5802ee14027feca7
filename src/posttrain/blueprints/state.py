"""The executor's memory on disk: it may die at any moment, and the next one goes on from here."""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from posttrain.blueprints.blueprint import Blueprint, Problem
from posttrain.blueprints.detect import Finding
from posttrain.blueprints.outcome import Outcome
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.repair import Repair, Variation
from posttrain.blueprints.status import Ending
from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.infra.digests import digest_bytes
from posttrain.infra.files import write_json
from posttrain.infra.tmux import Session, safe_name

_LOCK_TRIES = 5
_LOCK_TRY_S = 0.1


class Attempt(Frozen):
    """One start of the command."""

    number: int
    variation: Variation
    planned_at: float
    validation_offset: int = 0
    """Size of the validation file when the attempt began: what lies before is not its own."""
    ending: Ending | None = None
    finding: Finding | None = None
    """What went wrong, where something did."""
    repair: Repair | None = None
    """What is changed for the next attempt."""
    refused: tuple[str, ...] = ()
    """Proposals that were not carried out, with the reason."""


class Finish(Frozen):
    """The end of an experiment."""

    outcome: Outcome
    reason: str
    exit_code: int | None = None
    at: float


class State(Frozen):
    """One experiment, from its check to its documents."""

    name: str
    source: Path
    digest: str
    """Of the blueprint file: a changed file is a new experiment."""
    machine: str | None
    blueprint: Blueprint | None
    """None if the blueprint is invalid."""
    problems: tuple[Problem, ...] = ()
    started_at: float
    deadline: float
    gpu: str | None = None
    attempts: tuple[Attempt, ...] = ()
    session: Session | None = None
    service_session: Session | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    """Of the interpreter, its libraries and the code, when the experiment began."""
    results: Path | None = None
    """Where the documents should go; None where the blueprint does not say."""
    finish: Finish | None = None
    documents: Path | None = None
    """Where the documents lie; set when finish.flag is written."""

    @property
    def closed(self) -> bool:
        return self.documents is not None

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]

    def with_attempt(self, attempt: Attempt) -> State:
        """The same state with the attempt of this number replaced or added."""
        kept = tuple(other for other in self.attempts if other.number != attempt.number)
        return self.model_copy(update={"attempts": (*kept, attempt)})


class Event(Frozen):
    """One line of the timeline."""

    at: float
    text: str


def experiment_name(source: Path) -> str:
    """The name of a blueprint's state folder: readable, and different for every file."""
    words = safe_name(f"{source.parent.name}-{source.stem}", longest=40) or "blueprint"
    return f"{words}-{digest_bytes(str(source.resolve()).encode())[:8]}"


def session_name(name: str, purpose: str) -> str:
    """Contains `ajet` and what can be said of the purpose in letters that tmux keeps."""
    stem, _, digest = name.rpartition("-")
    words = safe_name(re.sub(r"[^\x00-\x7f]+", " ", purpose), longest=32) or safe_name(stem, longest=32)
    return "_".join(part for part in ("ajet", words, digest) if part)


def load_state(paths: StatePaths) -> State | None:
    """The stored state; None where there is none. UsageError if it cannot be read."""
    if not paths.state.exists():
        return None
    try:
        return State.model_validate_json(paths.state.read_bytes())
    except ValidationError as error:
        raise UsageError(
            f"{paths.state} cannot be read ({error.error_count()} faults); move it away"
        ) from error


def save_state(paths: StatePaths, state: State) -> None:
    """Replace the stored state in one step."""
    write_json(paths.state, state, mode=0o600)


@contextmanager
def only_executor(paths: StatePaths) -> Iterator[None]:
    """Hold the experiment; UsageError if another executor does."""
    paths.root.mkdir(parents=True, exist_ok=True)
    with paths.lock.open("a", encoding="utf-8") as file:
        if not any(_locked(file.fileno()) for _ in range(_LOCK_TRIES)):
            raise UsageError(f"{paths.root.name}: another executor is running this blueprint")
        yield


def is_held(paths: StatePaths) -> bool:
    """Whether an executor is at work on it now."""
    if not paths.lock.exists():
        return False
    with paths.lock.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_LOCK_TRY_S)  # a status command may hold it for an instant
        return False
    return True


class Timeline:
    """Events, appended to disk and told to whoever runs the executor."""

    def __init__(self, path: Path, *, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell

    def add(self, text: str) -> None:
        event = Event(at=time.time(), text=text)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event.model_dump(), ensure_ascii=False) + "\n")
        self._tell(text)

    def events(self) -> list[Event]:
        """All events; a line that a crash cut short is left out."""
        events: list[Event] = []
        if self._path.exists():
            for line in self._path.read_text("utf-8").splitlines():
                try:
                    events.append(Event.model_validate_json(line))
                except ValidationError:
                    continue
        return events
