"""How an experiment can end, and what an ended attempt means for it."""

from __future__ import annotations

from enum import StrEnum

from posttrain.blueprints.detect import Detector, Fault, Finding
from posttrain.blueprints.status import Ending
from posttrain.core.frozen import Frozen


class Outcome(StrEnum):
    """The `outcome` of finish.flag; there is no sixth."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    INVALID = "invalid"

    @property
    def exit_code(self) -> int:
        return {Outcome.SUCCEEDED: 0, Outcome.TIMEOUT: 0, Outcome.INVALID: 2}.get(self, 1)


class Verdict(Frozen):
    """Either an outcome, or a finding that a repair may help with."""

    outcome: Outcome | None
    reason: str
    finding: Finding | None = None


_FINAL: dict[str, tuple[Outcome, str]] = {
    "timeout": (Outcome.TIMEOUT, "time_limit"),
    "hangup": (Outcome.STOPPED, "session_lost"),
    "interrupt": (Outcome.STOPPED, "interrupted"),
    "launch_error": (Outcome.FAILED, "launch_error"),
}


def judge(ending: Ending, detector: Detector) -> Verdict:
    """What the end of an attempt means."""
    if ending.cause in _FINAL:
        outcome, reason = _FINAL[ending.cause]
        return Verdict(outcome=outcome, reason=reason)
    if ending.cause == "stop":
        return _stopped(ending.stop_reason or "user", detector)
    if ending.cause == "lost":
        return Verdict(outcome=None, reason="lost", finding=Finding(fault=Fault.LOST))
    if ending.exit_code == 0:
        return _regular_end(ending)
    finding = detector.explanation(exit_code=ending.exit_code)
    return Verdict(outcome=None, reason=finding.fault.value, finding=finding)


def _regular_end(ending: Ending) -> Verdict:
    """Exit 0; but a command that left its work to a process we had to end has not done it."""
    if ending.leftovers_busy:
        return Verdict(outcome=Outcome.FAILED, reason="daemonised")
    return Verdict(outcome=Outcome.SUCCEEDED, reason="finished")


def _stopped(reason: str, detector: Detector) -> Verdict:
    if reason == "plateau":
        return Verdict(outcome=Outcome.SUCCEEDED, reason="plateau")
    if reason == "stuck":
        return Verdict(outcome=None, reason="stuck", finding=Finding(fault=Fault.STUCK))
    if reason == "nan":
        finding = detector.diverged or Finding(fault=Fault.NAN)
        return Verdict(outcome=None, reason="nan", finding=finding)
    return Verdict(outcome=Outcome.STOPPED, reason="user")
