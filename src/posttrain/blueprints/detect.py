"""What went wrong, read from the log: kinds of faults with the lines that show them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from enum import StrEnum

from posttrain.blueprints.logs import LogLine
from posttrain.core.frozen import Frozen


class Fault(StrEnum):
    """Kinds of faults, the most telling first."""

    DISK_FULL = "disk_full"
    OUT_OF_MEMORY = "out_of_memory"
    PORT_TAKEN = "port_taken"
    STALE_LOCK = "stale_lock"
    MISSING_FOLDER = "missing_folder"
    NETWORK = "network"
    NAN = "nan"
    KILLED = "killed"
    TRACEBACK = "traceback"
    STUCK = "stuck"
    LOST = "lost"
    UNKNOWN = "unknown"


class Evidence(Frozen):
    """One line of the log."""

    line: int
    text: str


class Finding(Frozen):
    """A fault and the lines that show it."""

    fault: Fault
    evidence: tuple[Evidence, ...] = ()
    count: int = 1
    """How often it was seen."""

    @property
    def line(self) -> int:
        return self.evidence[-1].line if self.evidence else 0

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.evidence)


_PATTERNS: dict[Fault, re.Pattern[str]] = {
    Fault.DISK_FULL: re.compile(r"No space left on device|\bENOSPC\b|Disk quota exceeded"),
    Fault.OUT_OF_MEMORY: re.compile(
        r"out of memory|OutOfMemoryError|\bMemoryError\b|CUBLAS_STATUS_ALLOC_FAILED|Cannot allocate memory"
        r"|No available memory for the cache blocks|oom-kill",
        re.IGNORECASE,
    ),
    Fault.PORT_TAKEN: re.compile(
        r"address already in use|\bEADDRINUSE\b|port \d+ is (?:already )?(?:in use|taken|occupied|allocated)",
        re.IGNORECASE,
    ),
    Fault.STALE_LOCK: re.compile(
        r"(?:lock(?:file)?\b|\.lock\b).*(?:exists|held|acquire|in use|timed? ?out|another process)"
        r"|(?:exists|acquire|held|locked by).*(?:\block\b|\.lock\b)",
        re.IGNORECASE,
    ),
    Fault.MISSING_FOLDER: re.compile(
        r"(?:FileNotFoundError|NotADirectoryError|No such file or directory|does not exist).*[/'\"]"
        r"|[^\s:]*/[^\s:]*: No such file or directory"
    ),
    Fault.NETWORK: re.compile(
        r"Temporary failure in name resolution|Name or service not known|Could not resolve host"
        r"|Network is unreachable|Max retries exceeded with url|ConnectTimeout|Connection timed out"
        r"|Failed to establish a new connection|ProxyError|couldn't connect to 'https?:"
        r"|NameResolutionError|Failed to connect to [\w.-]+ port"
    ),
    Fault.KILLED: re.compile(r"(?:^|:\s|\d\s)Killed(?:$|\s)|SIGKILL|signal 9\b"),
}
_LOSS = re.compile(
    r"""['"]?([\w/.-]*(?:loss|mean_reward))['"]?\s*[:=]\s*['"]?(nan|[+-]?inf(?:inity)?|[+-]?[\d.]+(?:e[+-]?\d+)?)""",
    re.IGNORECASE,
)
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)?\b(?::|$)")
_NAN_IN_A_ROW = 3
_CONTEXT = 3
_LONGEST_TRACEBACK = 16
_NEAR_END = 200
"""An error so many lines before the end was survived; it does not explain the exit."""


class Detector:
    """Looks at every line once; keeps the latest case of every kind."""

    def __init__(self) -> None:
        self._latest: dict[Fault, Finding] = {}
        self._recent: deque[Evidence] = deque(maxlen=_CONTEXT)
        self._open: list[Evidence] | None = None
        self._nan_lines: list[Evidence] = []
        self._last_line = 0

    def __call__(self, line: LogLine) -> None:
        evidence = Evidence(line=line.number, text=line.text[:500])
        self._last_line = line.number
        self._traceback(evidence)
        for fault, pattern in _PATTERNS.items():
            if pattern.search(evidence.text):
                self._note(fault, (*self._recent, evidence))
        self._loss(evidence)
        self._recent.append(evidence)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All kinds seen, the most telling first."""
        return tuple(self._latest[fault] for fault in Fault if fault in self._latest)

    @property
    def diverged(self) -> Finding | None:
        """NaN or infinite losses in a row, up to now."""
        return self._latest.get(Fault.NAN) if len(self._nan_lines) >= _NAN_IN_A_ROW else None

    def explanation(self, *, exit_code: int | None) -> Finding:
        """What most likely ended the command."""
        near = [finding for finding in self.findings if finding.line > self._last_line - _NEAR_END]
        for finding in near:
            if finding.fault is not Fault.NAN or self.diverged:
                return finding
        if exit_code == 137:
            return Finding(fault=Fault.KILLED, evidence=tuple(self._recent))
        return Finding(fault=Fault.UNKNOWN, evidence=tuple(self._recent))

    def _traceback(self, evidence: Evidence) -> None:
        if _TRACEBACK in evidence.text:
            self._open = [evidence]
        elif self._open is not None:
            self._open.append(evidence)
            if not evidence.text[:1].isspace() and _EXCEPTION.match(evidence.text):
                self._note(Fault.TRACEBACK, _shortened(self._open))
                self._open = None

    def _loss(self, evidence: Evidence) -> None:
        values = [match[2].lower() for match in _LOSS.finditer(evidence.text)]
        if not values:
            return
        if any(value == "nan" or "inf" in value for value in values):
            self._nan_lines.append(evidence)
            if len(self._nan_lines) >= _NAN_IN_A_ROW:
                self._note(Fault.NAN, self._nan_lines[-_NAN_IN_A_ROW:])
        else:
            self._nan_lines.clear()

    def _note(self, fault: Fault, lines: Iterable[Evidence]) -> None:
        known = self._latest.get(fault)
        self._latest[fault] = Finding(
            fault=fault, evidence=tuple(lines), count=(known.count if known else 0) + 1
        )


def _shortened(lines: list[Evidence]) -> list[Evidence]:
    return lines if len(lines) <= _LONGEST_TRACEBACK else [lines[0], *lines[-_LONGEST_TRACEBACK:]]
