"""Drives one command-line agent over the whole budget: prompt, listen, prompt again while time is left.

The run's deadline is the only limit, and the lab enforces it: it ends every process here. The exit code
is that of the tool itself.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import TextIOWrapper
from pathlib import Path

from posttrain.agents._cli import clock, prompts
from posttrain.agents._cli.adapter import Adapter, Place, Usage
from posttrain.agents._cli.listener import Listener
from posttrain.agents._cli.trace import Trace
from posttrain.infra.files import write_json

NO_KEY = 2
NO_PROGRAM = 127
"""As a shell says it."""
CANNOT_START = 126
_STOPPED = 143
_MOST_FAILURES = 3
_MOST_IDLE = 3
_SHORT_S = 10.0
"""A turn that is over sooner is followed by a pause, twice as long each time: every prompt costs money."""
_LONGEST_PAUSE_S = 120.0
_SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SHORTEST_SECRET = 8


def run(adapter: Adapter, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """The exit code of an agent's program. With `--version` the tool tells its version, and that is all."""
    if isinstance(sys.stdout, TextIOWrapper):
        # whatever the locale: the log is read as UTF-8, and models write in any language
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    program = _program(adapter, env)
    if program is None:
        print(
            f"{adapter.name}: the program {adapter.program!r} is not to be seen here: {adapter.install}, "
            f"or set {adapter.variable}=/path/to/{adapter.program} where posttrain is started",
            flush=True,
        )
        return NO_PROGRAM
    if list(argv) == ["--version"]:
        asked = [program, *adapter.version]
        try:
            return subprocess.run(asked, check=False, stdin=subprocess.DEVNULL, env=dict(env)).returncode
        except OSError as error:
            print(_cannot_start(program, error), flush=True)
            return CANNOT_START
    if not any(env.get(name, "").strip() for name in adapter.keys):
        print(
            f"{adapter.name}: no key: set {' or '.join(adapter.keys)} where posttrain is started", flush=True
        )
        return NO_KEY
    return _Session(adapter, program, env).run()


def _program(adapter: Adapter, env: Mapping[str, str]) -> str | None:
    named = env.get(adapter.variable, "").strip()
    return shutil.which(named or adapter.program, path=env.get("PATH", os.defpath))


def _cannot_start(program: str, error: OSError) -> str:
    return f"{program} cannot be started: {error.strerror or error}"


@dataclass(frozen=True)
class _Ended:
    """How one turn ended."""

    code: int
    events: int
    worked: bool
    seconds: float


@dataclass
class _State:
    """What outlives the process, in `.agent/state.json`."""

    session: str | None = None
    """The conversation that goes on."""
    spent: Usage = field(default_factory=Usage)
    """What was told turn by turn, and what was told of conversations that are over."""
    total: Usage = field(default_factory=Usage)
    """What is told of this conversation as a whole, by tools that tell that."""

    @classmethod
    def read(cls, path: Path) -> _State:
        """As an interrupted run left it; empty where it cannot be read."""
        try:
            kept = json.loads(path.read_text("utf-8"))
            session = kept["session"]
            spent, total = (Usage() + Usage(**kept.get(name, {})) for name in ("spent", "total"))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls()
        return cls(session if isinstance(session, str) else None, spent, total)

    def count(self, turn: Usage, total: Usage | None) -> None:
        self.spent += turn
        self.total = total or self.total

    def leave(self) -> None:
        """The next conversation is another one."""
        self.session, self.spent, self.total = None, self.spent + self.total, Usage()


class _Session:
    """One conversation of a tool, from its first prompt to the last."""

    def __init__(self, adapter: Adapter, program: str, env: Mapping[str, str]) -> None:
        self._adapter = adapter
        self._program = program
        workspace = Path(env["WORKSPACE"])
        self._own = workspace / ".agent"
        self._place = Place(Path(sys.argv[0]).resolve().parent, workspace, self._own / "home", env)
        secrets = (value for name, value in env.items() if name.endswith(_SECRET_ENDINGS))
        self._trace = Trace(
            workspace / "trace.jsonl",
            sys.stdout,
            secrets=[value for value in secrets if len(value) >= _SHORTEST_SECRET],
        )
        self._child: subprocess.Popen[bytes] | None = None
        self._env: dict[str, str] = {}
        self._stopping = threading.Event()
        self._state = _State.read(self._own / "state.json") if env.get("POSTTRAIN_RESUMED") else _State()

    def run(self) -> int:
        """Prompt until the time, the ideas or the patience are used up."""
        signal.signal(signal.SIGTERM, self._stop)
        try:
            self._env = self._prepare()
        except OSError as error:
            self._trace.say(_cannot_start(self._program, error))
            return CANNOT_START
        turn, failures, idle, short, failed = 1, 0, 0, 0, None
        worked = self._state.session is not None  # an interrupted run's conversation is worth more than a try
        while True:
            ended = self._turn(turn, failed)
            short = short + 1 if ended.seconds < _SHORT_S else 0
            worked = worked or ended.worked
            if self._stopping.is_set():
                return _STOPPED
            if ended.code == 0:
                failed, failures = None, 0
                idle = 0 if ended.worked else idle + 1
            else:
                failed, failures = ended.code, failures + 1
                if not worked or failures >= _MOST_FAILURES:
                    self._trace.say(f"{self._adapter.name} failed: exit code {ended.code}")
                    return ended.code
                if not ended.events or (failures > 1 and not ended.worked):
                    self._begin_anew()
                if self._stopping.wait(min(5.0 * 4 ** (failures - 1), max(0.0, self._left()))):
                    return _STOPPED
            why = self._why_not_again(turn, idle)
            if why:
                self._trace.say(f"no further prompt: {why}")
                return ended.code
            if short and self._stopping.wait(
                min(0.25 * 2 ** min(short, 10), _LONGEST_PAUSE_S, max(0.0, self._left()))
            ):
                return _STOPPED
            turn += 1

    def _why_not_again(self, turn: int, idle: int) -> str:
        """A reason to end; empty where there is none."""
        least = min(self._number("REPROMPT_LEFT_S", 300.0), 0.1 * self._number("TIMEOUT_S", 0.0))
        most = int(self._number("MAX_PROMPTS", 0.0))
        if self._left() <= least:
            return f"{clock.told(self._left())} left"
        if most and turn >= most:
            return f"MAX_PROMPTS is {most}"
        return f"{idle} turns without any work" if idle >= _MOST_IDLE else ""

    def _prepare(self) -> dict[str, str]:
        """Standing orders, home and `timer`; the environment of the tool."""
        place, adapter = self._place, self._adapter
        tools = self._own / "bin"
        for folder in (place.home, tools):
            folder.mkdir(parents=True, exist_ok=True)
        timer = tools / "timer"
        timer.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m posttrain.agents._cli.timer "$@"\n', "utf-8")
        timer.chmod(0o755)
        own_orders = place.folder / "AGENTS.md"
        shared = Path(__file__).with_name("AGENTS.md")
        orders = (own_orders if own_orders.is_file() else shared).read_text("utf-8")
        for name in dict.fromkeys(("AGENTS.md", adapter.guide)):
            (place.workspace / name).write_text(orders, "utf-8")
        laid_over = {"HOME": str(place.home), **adapter.prepare(place)}
        path = os.pathsep.join([str(tools), place.env.get("PATH", os.defpath)])
        # some tools run commands in a login shell, and /etc/profile sets a PATH without ours
        (place.home / ".profile").write_text(f"export PATH={shlex.quote(path)}\n", "utf-8")
        version = self._version({**place.env, **laid_over})
        self._trace.say(f"{adapter.name} {version}, model {place.model or 'by default'}")
        self._trace.event(0, started={"tool": adapter.name, "version": version, "model": place.model})
        return {**place.env, **laid_over, "PATH": path}

    def _version(self, env: Mapping[str, str]) -> str:
        try:
            asked = subprocess.run(
                [self._program, *self._adapter.version],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env=env,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"(version unknown: {error})"
        return (asked.stdout.strip() or asked.stderr.strip() or "?").splitlines()[0]

    def _turn(self, turn: int, failed: int | None) -> _Ended:
        """One prompt, and what the tool does with it, to its end."""
        place, session = self._place, self._state.session
        first = turn == 1 or session is None
        prompt = prompts.render(1 if first else turn, workspace=place.workspace, env=place.env, failed=failed)
        argv = [self._program, *self._adapter.argv(place, session=session)]
        self._trace.say(f"--- prompt {turn}, {clock.told(self._left())} left")
        self._trace.event(turn, argv=argv, prompt=prompt)
        began = time.monotonic()
        try:
            child = self._start(argv, self._own / f"prompt-{turn}.md", prompt)
        except OSError as error:
            self._trace.say(_cannot_start(self._program, error))
            return _Ended(CANNOT_START, 0, worked=False, seconds=0.0)
        assert child.stdout is not None
        assert child.stderr is not None
        listener = Listener(self._adapter, self._trace, turn, conversation=self._converse)
        listener.listen(child.stdout, child.stderr)
        code = child.wait()
        listener.finish()  # the pipes stay open: what the tool left running may still write into them
        seconds = round(time.monotonic() - began, 1)
        ended = _Ended(code if code >= 0 else 128 - code, listener.events, listener.worked, seconds)
        self._state.count(listener.usage, listener.total)
        self._keep_state()
        self._trace.event(turn, ended={"exit_code": ended.code, "seconds": seconds, **self._used()})
        self._trace.say(f"--- turn {turn} ended with exit code {ended.code} after {clock.told(seconds)}")
        return ended

    def _start(self, argv: Sequence[str], asked: Path, prompt: str) -> subprocess.Popen[bytes]:
        if not (self._own / "bin" / "timer").is_file():
            self._env = self._prepare()  # a tool may clean up more than its own
        asked.write_text(prompt, "utf-8")
        with asked.open("rb") as stdin:
            self._child = subprocess.Popen(
                argv,
                cwd=self._place.workspace,
                env=self._env,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        return self._child

    def _converse(self, session: str) -> None:
        """Kept at once: an interrupted run goes on with the conversation that it was in."""
        if session != self._state.session:
            self._state.session = session
            self._keep_state()

    def _begin_anew(self) -> None:
        """The conversation cannot be gone on with."""
        self._state.leave()
        self._keep_state()

    def _keep_state(self) -> None:
        with suppress(OSError):  # a full disk; the conversation itself goes on
            self._own.mkdir(exist_ok=True)
            write_json(self._own / "state.json", asdict(self._state))

    def _used(self) -> dict[str, float]:
        usage = self._state.spent + self._state.total
        return {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "dollars": round(usage.dollars, 6),
        }

    def _left(self) -> float:
        return clock.left(self._place.workspace, self._place.env)

    def _number(self, name: str, default: float) -> float:
        stated = self._place.env.get(name) or default
        try:
            number = float(stated)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self._trace.say(f"{name}: {stated!r} is no number; {default:g} is taken")
            return default
        return number

    def _stop(self, *_: object) -> None:
        """The lab ends the run; it signals the tool as well, we only see that it hears it."""
        self._stopping.set()
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
