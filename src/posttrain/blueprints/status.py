"""What is known of an attempt: running, ended or unknown, never a guess."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from posttrain.core.frozen import Frozen

Cause = Literal["exit", "timeout", "stop", "hangup", "interrupt", "launch_error", "lost"]


class Status(Frozen):
    """The wrapper's status file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    phase: Literal["running", "ending", "ended"]
    wrapper_pid: int
    wrapper_start: str
    boot_id: str
    started_at: float
    ended_at: float | None = None
    written_at: float
    idle_s: float = 0.0
    """Seconds without output, CPU or GPU use."""
    output_bytes: int = 0
    lost_bytes: int = 0
    """Output that could not be written: the disk was full."""
    kill_mode: Literal["namespace", "best-effort"] | None = None
    cause: str = "exit"
    """`stop:<reason>` where the executor asked for it."""
    exit_code: int | None = None
    clean: bool = True
    """False if a process could not be ended."""
    leftovers: tuple[str, ...] = ()
    leftovers_busy: bool = False


class Probe(Frozen):
    """One look at an attempt."""

    state: Literal["absent", "running", "ended", "unknown"]
    """absent: the wrapper has not written yet. unknown: cannot tell, which is not the same as ended."""
    status: Status | None = None
    why: str = ""


class Ending(Frozen):
    """How an attempt ended."""

    cause: Cause
    stop_reason: str | None = None
    exit_code: int | None
    started_at: float
    ended_at: float
    kill_mode: str | None = None
    clean: bool = True
    leftovers: tuple[str, ...] = ()
    leftovers_busy: bool = False
    lost_bytes: int = Field(default=0, ge=0)

    @property
    def duration_s(self) -> float:
        return max(0.0, self.ended_at - self.started_at)


def ending_of(status: Status, *, alive: bool, now: float) -> Ending:
    """The last word of a wrapper, or `lost` where it died before it could say one."""
    if status.phase != "ended" and not alive:
        cause, reason = "lost", ""
    else:
        cause, _, reason = status.cause.partition(":")
    return Ending.model_validate(
        {
            "cause": cause,
            "stop_reason": reason or None,
            "exit_code": status.exit_code,
            "started_at": status.started_at,
            "ended_at": status.ended_at or min(now, status.written_at),
            "kill_mode": status.kill_mode,
            "clean": status.clean,
            "leftovers": status.leftovers,
            "leftovers_busy": status.leftovers_busy,
            "lost_bytes": status.lost_bytes,
        }
    )
