"""Hears a tool on both of its streams: every line into the trace, what it means into the log."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from posttrain.agents._cli.adapter import Adapter, Heard, Usage
from posttrain.agents._cli.trace import Trace
from posttrain.core.errors import PosttrainError, boundary

_LONGEST_LINE = 16 * 2**20
_LAST_WORDS_S = 2.0
"""For output that is still in the pipe when a tool has ended; what it left running may hold the pipe open."""
_MOST_PLAIN = 5000
"""Lines of a turn, other than events, that the log shows; the trace has them all."""


class Listener:
    """Hears a tool on both of its streams until it has ended."""

    def __init__(
        self, adapter: Adapter, trace: Trace, turn: int, *, conversation: Callable[[str], None]
    ) -> None:
        """`conversation` is told the conversation's id as soon as the tool tells it."""
        self._adapter = adapter
        self._trace = trace
        self._turn = turn
        self._conversation = conversation
        self._threads: list[threading.Thread] = []
        self._session: str | None = None
        self._plain = 0
        self.worked = False
        self.events = 0
        self.usage = Usage()
        """Of this turn."""
        self.total: Usage | None = None
        """Of the whole conversation, from tools that tell this instead."""

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
        self.worked = self.worked or heard.worked
        self.usage += heard.usage or Usage()
        self.total = heard.total or self.total
        if heard.session and heard.session != self._session:
            self._session = heard.session
            self._conversation(heard.session)
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
    told = [usage for usage in (heard.usage, heard.total) if usage is not None]
    counts = [count for usage in told for count in (usage.input_tokens, usage.output_tokens, usage.dollars)]
    return all(isinstance(text, str) for text in (*heard.lines, heard.piece, heard.session or "")) and all(
        isinstance(count, int | float) and abs(count) < math.inf for count in counts
    )


def _decoded(text: str) -> dict[str, object] | None:
    """An event, if it is one that could be written down again."""
    try:
        event = json.loads(text)
        json.dumps({"event": {"event": event}})
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
