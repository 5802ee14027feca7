"""What is missing or wrong in a blueprint, with the line; a Blueprint where nothing is."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.blueprints.blueprint import REQUIRED, Blueprint, Label, Problem
from posttrain.blueprints.limits import LimitError, parse_limit
from posttrain.blueprints.machine import Machine
from posttrain.blueprints.parse import Parsed, parse
from posttrain.blueprints.yaml_hints import yaml_hints
from posttrain.blueprints.yaml_text import YamlError, scalars

_PLACEHOLDER = re.compile(r"\$\{[A-Za-z_]\w*\}|\{\{.*?\}\}|<(?:path|absolute path|绝对路径)[^>]*>")
_TYPOGRAPHIC = re.compile(r"[“”‘’]|(?<=\s)[–—](?=\w)|\u00a0")
_SERVICE_IN_NOTES = re.compile(r"`(ajet swarm server[^`\n]*)`")


@dataclass(frozen=True)
class Checked:
    """The outcome of a check."""

    blueprint: Blueprint | None
    """None if there is an error."""
    problems: tuple[Problem, ...]
    parsed: Parsed

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.level == "error")


def check(text: str, *, source: Path, machine: Machine) -> Checked:
    """Parse and look at everything that can be known before the run."""
    return _Check(parse(text), source, machine).run()


@dataclass
class _Check:
    parsed: Parsed
    source: Path
    machine: Machine
    problems: list[Problem] = field(default_factory=list)

    def run(self) -> Checked:
        self.problems += self.parsed.problems
        for label in REQUIRED:
            self._require(label)
        limit_s = self._limit()
        codebase = self._folder(Label.CODEBASE)
        python = self._python()
        yaml = self._yaml(codebase)
        command = self._command(yaml, codebase)
        results = self._results(codebase)
        ordered = tuple(sorted(self.problems, key=lambda problem: (problem.line, problem.level)))
        blueprint = None
        if not any(problem.level == "error" for problem in ordered):
            blueprint = self._blueprint(
                codebase=codebase,
                python=python,
                yaml=yaml,
                command=command,
                results=results,
                max_time_s=limit_s,
            )
        return Checked(blueprint, ordered, self.parsed)

    def _blueprint(self, **known: Path | str | float | None) -> Blueprint:
        notes = self._value(Label.NOTES)
        mentioned = _SERVICE_IN_NOTES.search(notes)
        service = self._value(Label.SERVICE) or (mentioned[1].strip() if mentioned else None)
        return Blueprint.model_validate(
            {
                "source": self.source,
                "purpose": self._value(Label.PURPOSE),
                "notes": notes,
                "service_command": service,
                "service_ready": self._value(Label.SERVICE_READY) or None,
                **known,
            }
        )

    def _value(self, label: Label) -> str:
        part = self.parsed.parts.get(label)
        return part.value if part else ""

    def _line(self, label: Label) -> int:
        part = self.parsed.parts.get(label)
        return part.line if part else self.parsed.line_after(label)

    def _error(self, label: Label, message: str) -> None:
        self.problems.append(Problem(line=self._line(label), label=label, level="error", message=message))

    def _warning(self, label: Label, message: str) -> None:
        self.problems.append(Problem(line=self._line(label), label=label, level="warning", message=message))

    def _require(self, label: Label) -> None:
        if label not in self.parsed.parts:
            self._error(label, "is missing")
        elif not self._value(label):
            self._error(label, "is empty")
        elif label not in {Label.COMMAND, Label.PURPOSE} and _PLACEHOLDER.search(self._value(label)):
            self._error(label, f"the placeholder in {self._value(label)!r} is not filled in")

    def _known(self, label: Label) -> bool:
        """Whether there is a value that no error has been told about yet."""
        told = any(problem.label is label and problem.level == "error" for problem in self.problems)
        return bool(self._value(label)) and not told

    def _limit(self) -> float | None:
        if not self._known(Label.MAX_TIME):
            return None
        try:
            seconds, with_unit = parse_limit(self._value(Label.MAX_TIME))
        except LimitError as error:
            self._error(Label.MAX_TIME, str(error))
            return None
        if not with_unit:
            self._warning(Label.MAX_TIME, f"has no unit and is read as hours: {seconds / 3600:g}h")
        return seconds

    def _absolute(self, label: Label) -> Path | None:
        if not self._known(label):
            return None
        path = Path(os.path.normpath(self._value(label)))
        if not path.is_absolute():
            self._error(label, f"must be an absolute path: {self._value(label)}")
            return None
        return path

    def _folder(self, label: Label) -> Path | None:
        path = self._absolute(label)
        if path is None:
            return None
        kind = self.machine.facts(path).kind
        if kind != "folder":
            self._error(label, f"is not a folder: {path}" if kind == "file" else f"does not exist: {path}")
            return None
        return path

    def _python(self) -> Path | None:
        path = self._absolute(Label.PYTHON)
        if path is None:
            return None
        facts = self.machine.facts(path)
        if facts.kind == "absent":
            self._error(Label.PYTHON, f"does not exist: {path}")
        elif facts.kind == "folder":
            self._error(Label.PYTHON, f"is a folder; the interpreter is meant, perhaps {path}/bin/python")
        elif not facts.executable:
            self._error(Label.PYTHON, f"is not executable: {path}")
        else:
            return path
        return None

    def _yaml(self, codebase: Path | None) -> Path | None:
        """Absolute; inside the code folder as written or as it resolves."""
        if codebase is None or not self._known(Label.YAML):
            return None
        path = Path(os.path.normpath(codebase / self._value(Label.YAML)))
        if codebase not in path.parents:
            self._error(Label.YAML, f"lies outside the code folder {codebase}: {path}")
            return None
        raw = self.machine.read(path) if self.machine.facts(path).kind == "file" else None
        if raw is None:
            self._error(Label.YAML, f"does not exist: {path}")
            return None
        return path if self._content(raw, codebase) else None

    def _content(self, raw: bytes, codebase: Path) -> bool:
        try:
            values = scalars(raw.decode("utf-8"))
        except UnicodeDecodeError:
            self._error(Label.YAML, "is not UTF-8 text")
        except YamlError as error:
            self._error(Label.YAML, f"is no YAML, line {error.line} of the file: {error}")
        else:
            for key, message in yaml_hints(values, codebase=codebase, machine=self.machine):
                self._warning(Label.YAML, f"{key} {message}")
            return True
        return False

    def _command(self, yaml: Path | None, codebase: Path | None) -> str:
        command = self._value(Label.COMMAND)
        if not self._known(Label.COMMAND):
            return command
        if "\0" in command:
            self._error(Label.COMMAND, "contains a null character")
        strange = _TYPOGRAPHIC.search(command)
        if strange:
            self._warning(Label.COMMAND, f"contains a typographic character, {strange.group()!r}")
        if yaml and codebase and yaml.name not in command and not _names(command, yaml, codebase):
            self._warning(Label.COMMAND, f"does not name the YAML file {yaml.name}")
        return command

    def _results(self, codebase: Path | None) -> Path | None:
        path = self._absolute(Label.RESULTS)
        if path is None:
            return None
        facts = self.machine.facts(path)
        if facts.kind == "file":
            self._error(Label.RESULTS, f"is a file, not a folder: {path}")
        elif not facts.writable:
            self._error(Label.RESULTS, f"cannot be written: {path}")
        else:
            if path == codebase:
                self._warning(Label.RESULTS, "is the code folder itself")
            return path
        return None


def _names(command: str, yaml: Path, codebase: Path) -> bool:
    return any(Path(os.path.normpath(codebase / word)) == yaml for word in _words(command))


def _words(command: str) -> Iterator[str]:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    for word in words:
        yield word.rpartition("=")[2]
