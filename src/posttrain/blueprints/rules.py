"""Repairs that need no judgement: one short function for each kind of fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posttrain.blueprints.detect import Fault
from posttrain.blueprints.machine import Machine
from posttrain.blueprints.readiness import Readiness
from posttrain.blueprints.repair import (
    Action,
    MakeFolder,
    MoveAside,
    Repair,
    RepairCase,
    Variation,
    WriteCopy,
)
from posttrain.blueprints.yaml_text import YamlError, replace_scalars, scalars

Rule = Callable[[RepairCase, Machine], Repair | None]

_QUOTED = re.compile(r"['\"]((?:/|\.{0,2}/)?[^'\"\n]+)['\"]")
_PATH = re.compile(r"(?:^|[\s:=(])((?:/|\./|\.\./)?[\w.@+-]+(?:/[\w.@+-]+)+|[\w.-]+\.lock)")
_PORT = re.compile(r"(?:port[\s:=]*|:)(\d{2,5})\b", re.IGNORECASE)
_TORCH_PORT = 29500
_PROXIES = ("proxychains4", "proxychains")
_MICRO = re.compile(
    r"micro_batch|per_(?:device|gpu).*batch|batch_size_per_(?:device|gpu)|max_token_len_per_gpu"
)
_ACCUMULATE = re.compile(r"(?:gradient_)?accumulation_steps?$|grad_accum")
_PLAIN_BATCH = re.compile(r"(?:^|[._])batch_size$|(?:^|[._])batch$")
_BATCH_OPTION = re.compile(r"(--[\w.-]*batch[_-]size[\w.-]*[ =])(\d+)\b")
_LEARNING_RATE = re.compile(r"(?:^|[._])(?:lr|learning_rate)$")


class RuleBook:
    """The repairer that ships."""

    name = "rules"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def propose(self, case: RepairCase) -> Repair | None:
        for rule in RULES.get(case.finding.fault, ()):
            repair = rule(case, self._machine)
            if repair is not None:
                return repair
        return None


def other_port(case: RepairCase, machine: Machine) -> Repair | None:
    """Use a free port where the YAML, the command or torch's environment names the taken one."""
    found = _PORT.search(case.finding.text)
    taken = int(found[1]) if found else _TORCH_PORT
    free = next(
        (
            port
            for port in range(taken + 1, taken + 200)
            if not machine.answers(Readiness(kind="port", port=port))
        ),
        None,
    )
    if free is None:
        return None
    changes = {
        name: free for name, value in _values(case).items() if value == taken and "port" in name.lower()
    }
    command = re.sub(rf"(?<![\d.]){taken}(?![\d.])", str(free), case.variation.command)
    torch = taken == _TORCH_PORT or re.search(r"TCPStore|c10d|torch\.distributed", case.finding.text)
    env = {"MASTER_PORT": str(free)} if torch else {}
    if not changes and command == case.variation.command and not env:
        return None
    return _varied(case, "other_port", f"port {taken} is taken", changes, command=command, env=env)


def move_lock_aside(case: RepairCase, machine: Machine) -> Repair | None:
    """Move a lock file that no process has open."""
    for path in _paths(case):
        if not _inside(path, case) or "lock" not in path.name.lower():
            continue
        if machine.facts(path).kind == "file" and not machine.in_use(path):
            target = path.with_name(f"{path.name}.stale-{case.number}")
            action = MoveAside(path=path, target=target)
            return _unvaried(
                case, "stale_lock", f"no process holds {path}", f"moved it to {target.name}", action
            )
    return None


def make_folder(case: RepairCase, machine: Machine) -> Repair | None:
    """Make the folder that a file should have gone into."""
    for path in _paths(case):
        if not _inside(path, case):
            continue
        folder = path.parent if path.suffix else path
        if machine.facts(folder).kind == "absent":
            action = MakeFolder(path=folder)
            return _unvaried(case, "missing_folder", f"{folder} was missing", f"made {folder}", action)
    return None


def less_memory(case: RepairCase, _machine: Machine) -> Repair | None:
    """Halve what one device holds at a time and keep the effective batch; else use the memory savers."""
    changes = _less_memory(_values(case))
    command, words = _halved_options(case.variation.command)
    if not changes and not words:
        return None
    return _varied(case, "less_memory", "memory ran out", changes, command=command, words=words)


def lower_learning_rate(case: RepairCase, _machine: Machine) -> Repair | None:
    """A third of the learning rate."""
    changes = {
        name: value * 0.3
        for name, raw in _values(case).items()
        if _LEARNING_RATE.search(name) and (value := _float(raw)) is not None and value > 0
    }
    command = re.sub(
        r"(--(?:lr|learning[_-]rate)[ =])([\d.eE+-]+)",
        lambda match: f"{match[1]}{float(match[2]) * 0.3:.6g}",
        case.variation.command,
    )
    if not changes and command == case.variation.command:
        return None
    return _varied(case, "lower_learning_rate", "the loss is not a number", changes, command=command)


def through_proxy(case: RepairCase, machine: Machine) -> Repair | None:
    """Start the command through proxychains where that is installed."""
    program = next((name for name in _PROXIES if machine.has_program(name)), None)
    if program is None or case.variation.prefix or "proxychains" in case.variation.command:
        return None
    variation = case.variation.model_copy(
        update={"prefix": (program, "-q") if program[-1] == "4" else (program,)}
    )
    change = f"the command is started through {program}"
    return Repair(by="proxychains", why="the network does not answer", changes=(change,), variation=variation)


def again(case: RepairCase, _machine: Machine) -> Repair | None:
    """Once more as it was: for faults that may not come back."""
    if any(repair.by == "again" for repair in case.earlier):
        return None
    why = f"{case.finding.fault.value}: may not come back"
    return Repair(by="again", why=why, changes=("nothing; started again",), variation=case.variation)


RULES: Mapping[Fault, tuple[Rule, ...]] = {
    Fault.PORT_TAKEN: (other_port,),
    Fault.STALE_LOCK: (move_lock_aside,),
    Fault.MISSING_FOLDER: (make_folder,),
    Fault.OUT_OF_MEMORY: (less_memory,),
    Fault.KILLED: (less_memory, again),
    Fault.NAN: (lower_learning_rate,),
    Fault.NETWORK: (through_proxy, again),
    Fault.STUCK: (again,),
    Fault.LOST: (again,),
}


def _values(case: RepairCase) -> dict[str, Any]:
    try:
        return scalars(case.yaml_text)
    except YamlError:
        return {}


def _less_memory(values: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if _is_count(value) and value > 1 and _MICRO.search(name):
            changes[name] = value // 2
        elif isinstance(value, float) and name.endswith("gpu_memory_utilization") and value > 0.25:
            changes[name] = round(value * 0.8, 3)
        elif value is False and name.endswith("gradient_checkpointing"):
            changes[name] = True
    if any("per_device" in name for name in changes):
        counts = {
            name: value for name, value in values.items() if _is_count(value) and _ACCUMULATE.search(name)
        }
        changes.update({name: value * 2 for name, value in counts.items()})
    if not changes:
        changes = {
            name: value // 2
            for name, value in values.items()
            if _is_count(value) and value > 1 and _PLAIN_BATCH.search(name)
        }
    return changes


def _halved_options(command: str) -> tuple[str, tuple[str, ...]]:
    """`--per_device_train_batch_size 8` and the like."""
    words: list[str] = []

    def halve(match: re.Match[str]) -> str:
        value = int(match[2])
        if value < 2:
            return match[0]
        words.append(f"{match[1].strip(' =')} {value} → {value // 2}")
        return f"{match[1]}{value // 2}"

    return _BATCH_OPTION.sub(halve, command), tuple(words)


def _varied(
    case: RepairCase,
    by: str,
    why: str,
    changes: Mapping[str, Any],
    *,
    command: str,
    env: Mapping[str, str] | None = None,
    words: tuple[str, ...] = (),
) -> Repair | None:
    """A repair by other values; None where the command would not read the changed copy of the YAML."""
    before = _values(case)
    told = [*words, *(f"{name}: {before[name]} → {value}" for name, value in changes.items())]
    actions: tuple[Action, ...] = ()
    yaml = case.variation.yaml
    if changes:
        yaml = _copy_name(case)
        renamed = re.sub(rf"(?<![\w.-]){re.escape(case.variation.yaml.name)}(?![\w-])", yaml.name, command)
        if renamed == command:
            return None
        command = renamed
        actions = (WriteCopy(path=yaml, text=replace_scalars(case.yaml_text, changes)),)
        told.append(f"in a copy, {yaml.name}")
    if env:
        told += [f"{name}={value} in the environment" for name, value in env.items()]
    elif not changes and not words:
        told.append(f"command: {command}")
    variation = Variation(
        command=command, yaml=yaml, env={**case.variation.env, **(env or {})}, prefix=case.variation.prefix
    )
    return Repair(by=by, why=why, changes=tuple(told), variation=variation, actions=actions)


def _unvaried(case: RepairCase, by: str, why: str, change: str, action: Action) -> Repair:
    return Repair(by=by, why=why, changes=(change,), variation=case.variation, actions=(action,))


def _copy_name(case: RepairCase) -> Path:
    original = case.blueprint.yaml
    return original.with_name(f"{original.stem}.repair-{case.number}{original.suffix}")


def _paths(case: RepairCase) -> list[Path]:
    """Paths in the evidence, the last named first; relative ones below the code folder."""
    found: list[Path] = []
    for line in reversed(case.finding.evidence):
        named = _QUOTED.findall(line.text) or _PATH.findall(line.text)
        found += [case.blueprint.codebase / name for name in reversed(named)]
    return found


def _inside(path: Path, case: RepairCase) -> bool:
    roots = (case.blueprint.codebase, case.blueprint.results)
    return ".." not in path.parts and any(root in path.parents for root in roots)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _float(value: Any) -> float | None:
    """A number, also where YAML reads `1e-6` as text."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
