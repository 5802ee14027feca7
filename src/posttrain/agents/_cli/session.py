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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from posttrain.agents._cli import clock, prompts
from posttrain.agents._cli.adapter import Adapter, Heard, Place, Usage
from posttrain.agents._cli.trace import Trace
from posttrain.core.errors import PosttrainError, boundary
from posttrain.infra.files import write_json

NO_KEY = 2
NO_PROGRAM = 127
"""As a shell says it."""
CANNOT_START = 126
_STOPPED = 143
_LONGEST_LINE = 16 * 2**20
_LAST_WORDS_S = 2.0
"""For output that is still in the pipe when a tool has ended; what it left running may hold the pipe open."""
_MOST_FAILURES = 3
_MOST_IDLE = 3
_SHORT_S = 10.0
"""A turn that is over sooner is followed by a pause, twice as long each time: every prompt costs money."""
_LONGEST_PAUSE_S = 120.0
_MOST_PLAIN = 5000
"""Lines of a turn, other than events, that the log shows; the trace has them all."""
_SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SHORTEST_SECRET = 8


def run(adapter: Adapter, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """The exit code of an agent's program. With `--version` the tool tells its version, and that is all."""
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
        self._stopping = threading.Event()
        self._usage = Usage()
        self._conversation = self._known_conversation() if env.get("POSTTRAIN_RESUMED") else None

    def run(self) -> int:
        """Prompt until the time, the ideas or the patience are used up."""
        signal.signal(signal.SIGTERM, self._stop)
        tool_env = self._prepare()
        turn, failures, idle, worked, failed = 1, 0, 0, False, None
        short = 0
        while True:
            if not (self._own / "bin" / "timer").is_file():
                tool_env = self._prepare()  # a tool may clean up more than its own
            ended = self._turn(turn, tool_env, failed)
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
                if not ended.events:
                    self._conversation = None  # it could not be continued
                if self._stopping.wait(min(5.0 * 4 ** (failures - 1), max(0.0, self._left()))):
                    return _STOPPED
            why = self._why_not_again(turn, idle)
            if why:
                self._trace.say(f"no further prompt: {why}")
                return ended.code
            if short and self._stopping.wait(min(0.25 * 2**short, _LONGEST_PAUSE_S, max(0.0, self._left()))):
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

    def _turn(self, turn: int, env: Mapping[str, str], failed: int | None) -> _Ended:
        """One prompt, and what the tool does with it, to its end."""
        place = self._place
        first = turn == 1 or self._conversation is None
        prompt = prompts.render(1 if first else turn, workspace=place.workspace, env=place.env, failed=failed)
        asked = self._own / f"prompt-{turn}.md"
        asked.write_text(prompt, "utf-8")
        argv = self._adapter.argv(place, session=self._conversation)
        self._trace.say(f"--- prompt {turn}, {clock.told(self._left())} left")
        self._trace.event(turn, argv=[self._program, *argv], prompt=prompt)
        began = time.monotonic()
        listener = _Listener(self._adapter, self._trace, turn)
        with asked.open("rb") as stdin:
            try:
                child = subprocess.Popen(
                    [self._program, *argv],
                    cwd=place.workspace,
                    env=dict(env),
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            except OSError as error:
                self._trace.say(_cannot_start(self._program, error))
                return _Ended(CANNOT_START, 0, worked=False, seconds=0.0)
        self._child = child
        assert child.stdout is not None
        assert child.stderr is not None
        listener.listen(child.stdout, child.stderr)
        code = child.wait()
        listener.finish()  # the pipes stay open: what the tool left running may still write into them
        seconds = round(time.monotonic() - began, 1)
        ended = _Ended(code if code >= 0 else 128 - code, listener.events, listener.worked, seconds)
        self._remember(turn, listener)
        self._trace.event(turn, ended={"exit_code": ended.code, "seconds": seconds, **self._used()})
        self._trace.say(f"--- turn {turn} ended with exit code {ended.code} after {clock.told(seconds)}")
        return ended

    def _remember(self, turn: int, listener: _Listener) -> None:
        self._usage += listener.usage
        self._conversation = listener.session or self._conversation
        self._own.mkdir(exist_ok=True)
        write_json(self._own / "state.json", {"session": self._conversation, "turns": turn})

    def _known_conversation(self) -> str | None:
        """The conversation that an interrupted run was in."""
        try:
            session = json.loads((self._own / "state.json").read_text("utf-8"))["session"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return session if isinstance(session, str) else None

    def _used(self) -> dict[str, float]:
        usage = self._usage
        return {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "dollars": round(usage.dollars, 6),
        }

    def _left(self) -> float:
        return clock.left(self._place.workspace, self._place.env)

    def _number(self, name: str, default: float) -> float:
        try:
            return float(self._place.env.get(name) or default)
        except ValueError:
            self._trace.say(f"{name}: {self._place.env[name]!r} is no number; {default:g} is taken")
            return default

    def _stop(self, *_: object) -> None:
        """The lab ends the run; it signals the tool as well, we only see that it hears it."""
        self._stopping.set()
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()


class _Listener:
    """Hears a tool on both of its streams until it has ended."""

    def __init__(self, adapter: Adapter, trace: Trace, turn: int) -> None:
        self._adapter = adapter
        self._trace = trace
        self._turn = turn
        self._threads: list[threading.Thread] = []
        self.session: str | None = None
        self.worked = False
        self.events = 0
        self.usage = Usage()
        self._plain = 0

    def listen(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        for stream, kind in ((stdout, "event"), (stderr, "stderr")):
            thread = threading.Thread(target=self._follow, args=(stream, kind), daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self) -> None:
        """Take what is still in the pipes."""
        until = time.monotonic() + _LAST_WORDS_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._trace.say()

    def _follow(self, stream: IO[bytes], kind: str) -> None:
        """To the end whatever comes: a pipe that nobody reads would stop the tool."""
        for line in iter(lambda: stream.readline(_LONGEST_LINE), b""):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if not text.strip():
                continue
            with suppress(PosttrainError), boundary(PosttrainError, "a line of the tool"):
                self._take(text, kind)

    def _take(self, text: str, kind: str) -> None:
        event = _decoded(text) if kind == "event" else None
        if event is None:
            self._trace.event(self._turn, **{"stderr" if kind == "stderr" else "text": text})
            self._plain += 1
            if self._plain <= _MOST_PLAIN:
                self._trace.say(text)
            elif self._plain == _MOST_PLAIN + 1:
                self._trace.say("… more lines stand in trace.jsonl")
            return
        self._trace.event(self._turn, event=event)
        self.events += 1
        heard = self._understood(event)
        self.session = heard.session or self.session
        self.worked = self.worked or heard.worked
        self.usage += heard.usage or Usage()
        if heard.piece:
            self._trace.piece(heard.piece)
        if heard.lines:
            self._trace.say(*(line for line in heard.lines if line.strip()))

    def _understood(self, event: dict[str, object]) -> Heard:
        """What the adapter makes of it. An unknown shape is in the trace, and no reason to end."""
        try:
            heard = self._adapter.read(event)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError):
            return Heard()
        return heard if _sound(heard) else Heard(worked=heard.worked)


def _sound(heard: Heard) -> bool:
    """Adapters pass on what events hold, which may be anything."""
    usage = heard.usage or Usage()
    counts = (usage.input_tokens, usage.output_tokens, usage.dollars)
    return all(isinstance(text, str) for text in (*heard.lines, heard.piece, heard.session or "")) and all(
        isinstance(count, int | float) and math.isfinite(count) for count in counts
    )


def _decoded(text: str) -> dict[str, object] | None:
    """An event, if it is one that could be written down again."""
    try:
        event = json.loads(text)
        json.dumps({"event": {"event": event}})
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
