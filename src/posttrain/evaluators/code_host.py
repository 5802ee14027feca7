"""The trusted side of a tested program: starts the guest, runs the tests here, sends it calls only."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from posttrain.core.errors import InfrastructureError, PluginError, PosttrainError, boundary
from posttrain.core.frozen import Frozen
from posttrain.evaluators import code_guest
from posttrain.evaluators.code_guest import Foreign, NotLiteral, decode, encode
from posttrain.infra.processes import Child, Command, Limits, Spawner
from posttrain.infra.sandbox import View, choose_uid

_LONGEST_REPLY = 16 << 20
_SCRATCH_BYTES = 64 << 20
_ENDING_S = 2.0


class CodeLimits(Frozen):
    """What one tested program may use."""

    cpu_s: int = 3
    wall_s: float = 6.0
    memory_mb: int = 1024
    file_mb: int = 16
    processes: int = 32


class ProgramFault(PosttrainError):
    """The program failed its tests, and how."""


class EndedEarly(ProgramFault):
    """The program's process ended before it had answered."""


class Tests(Frozen):
    """The task's own code around a program."""

    code: str
    """Runs here. Names that it uses are the program's where `gold` or nobody else defines them."""
    helpers: str = ""
    """Runs here before, such as functions that the prompt shows."""
    setup: str = ""
    """Runs behind the program, in its process."""
    gold: str = ""
    """A right program; read only, for the names that it defines."""


def run_tests(code: str, tests: Tests, *, limits: CodeLimits, spawner: Spawner, view: View) -> str | None:
    """Run tests against a program: None if it passes, else why it does not.

    Calls of the program's functions go to the guest, and what comes back are literals.
    """
    with spawner.spawn(_command(limits, view), name="program") as child, _Deadline(child, limits) as deadline:
        guest = _Guest(child)
        try:
            guest.start(code, tests.setup)
            _run(tests, guest)
        except ProgramFault as fault:
            return _why(fault, child, limits, expired=deadline.passed)
    return None


def _why(fault: ProgramFault, child: Child, limits: CodeLimits, *, expired: bool) -> str:
    if expired:
        return f"ran longer than {limits.wall_s:g} s"
    if isinstance(fault, EndedEarly) and child.wait(_ENDING_S) in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"was killed at its limits ({limits.cpu_s} s of processor time, {limits.memory_mb} MB)"
    return str(fault)


def make_view(slot: str) -> View:
    """What a tested program sees: the system and Python, small scratch folders, no network.

    As root each slot has a user id of its own, so that programs side by side share no quota.
    InfrastructureError where this machine cannot shut a program in.
    """
    uid = choose_uid(f"program-{slot}") if os.getuid() == 0 else None
    view = View.allow_list(home=Path("/home/program"), uid=uid, network="none")
    options: list[str] = []
    for word in view.bwrap_options:
        options += ("--size", str(_SCRATCH_BYTES), word) if word == "--tmpfs" else (word,)
    return dataclasses.replace(view, bwrap_options=tuple(options))


def _command(limits: CodeLimits, view: View) -> Command:
    return Command(
        argv=[sys.executable, "-I", "-S", "-B", str(Path(code_guest.__file__).resolve())],
        cwd=Path("/tmp"),  # noqa: S108 (a fresh one, inside the view)
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"},
        stdin="pipe",
        stdout="pipe",
        stderr="null",
        limits=Limits(
            address_space_bytes=limits.memory_mb << 20,
            file_bytes=limits.file_mb << 20,
            cpu_s=limits.cpu_s,
            open_files=64,
            processes=limits.processes,
        ),
        view=view,
    )


class _Deadline:
    """Ends the child when its time is up; every read and write of its pipes ends with it."""

    def __init__(self, child: Child, limits: CodeLimits) -> None:
        self.passed = False
        self._child = child
        self._timer = threading.Timer(limits.wall_s, self._expire)
        self._timer.daemon = True

    def _expire(self) -> None:
        self.passed = True
        self._child.stop(grace_s=0.0)

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._child.stop(grace_s=0.0)


class _Guest:
    """Calls into the guest. Each carries a random token that its answer must repeat."""

    def __init__(self, child: Child) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._to: BinaryIO = child.stdin
        self._from: BinaryIO = child.stdout

    def start(self, code: str, setup: str) -> None:
        reply = self._exchange({"code": code, "setup": setup})
        if reply != {"ready": True}:
            raise ProgramFault(f"the program itself: {_text(reply.get('error'))}")

    def ask(self, what: dict[str, Any]) -> Any:
        token = secrets.token_hex(8)
        reply = self._exchange({**what, "token": token})
        if reply.get("token") != token:
            raise ProgramFault("the answer to a call was forged")
        if "value" not in reply:
            raise ProgramFault(f"a call raised {_text(reply.get('error'))}")
        try:
            return decode(reply["value"])
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise ProgramFault("a call answered with something that is no literal") from error

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self._to.write(json.dumps(message).encode("ascii") + b"\n")
            self._to.flush()
            line = self._from.readline(_LONGEST_REPLY)
        except (OSError, ValueError) as error:
            raise EndedEarly("the program ended early") from error
        if not line:
            raise EndedEarly("the program ended early")
        if not line.endswith(b"\n"):
            raise ProgramFault("an answer was too long")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ProgramFault("the answer to a call was forged") from error
        if not isinstance(reply, dict):
            raise ProgramFault("the answer to a call was forged")
        return reply


def _run(tests: Tests, guest: _Guest) -> None:
    space: dict[str, Any] = {"__name__": "tests"}
    with boundary(PluginError, "tests of the task"):
        exec(compile(tests.helpers, "<helpers>", "exec"), space)  # noqa: S102 (the task's own code)
        # a right program may redefine a builtin (`sum`); what the answer redefines must not count, or
        # it would bring its own `abs` to be compared with
        known = (set(space) | set(dir(builtins))) - (_bound(tests.gold) if tests.gold else set())
        names = _unknown_names(tests.code, known)
        compiled = compile(tests.code, "<tests>", "exec")
    for name in names:
        space[name] = _remote(name, guest)
    try:
        with boundary(PluginError, "tests"):
            exec(compiled, space)  # noqa: S102 (the task's own code)
    except PluginError as error:
        raise ProgramFault(_failed(error)) from error


def _failed(error: PluginError) -> str:
    cause = error.__cause__
    if isinstance(cause, AssertionError):
        return "a test failed"
    if isinstance(cause, NotLiteral):
        raise InfrastructureError(f"a test hands over what is no literal: {cause}") from cause
    return f"a test failed: {type(cause).__name__}: {cause}"[:300]


def _unknown_names(tests: str, known: set[str]) -> list[str]:
    """Names that the tests read and nothing on this side defines, in order of appearance."""
    names = [node for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | _bound(tests)
    loaded = [node.id for node in names if isinstance(node.ctx, ast.Load)]
    return [name for name in dict.fromkeys(loaded) if name not in known and name not in stored]


def _bound(tests: str) -> set[str]:
    """Names that definitions, imports and parameters of the tests bind."""
    bound: set[str] = set()
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return bound


def _remote(name: str, guest: _Guest) -> Any:
    """The program's function of that name, or what it holds under it."""
    held = guest.ask({"name": name})
    if isinstance(held, Foreign) and held.kind == "module" and name in sys.stdlib_module_names:
        return importlib.import_module(name)
    if not isinstance(held, Foreign) or held.kind not in ("function", "type", "builtin_function_or_method"):
        return held
    return _caller(name, guest)


def _caller(name: str, guest: _Guest) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return guest.ask(
            {
                "name": name,
                "args": [encode(value) for value in args],
                "kwargs": {key: encode(value) for key, value in kwargs.items()},
            }
        )

    call.__name__ = name
    return call


def _text(value: object) -> str:
    return str(value)[:300]
