"""The error tree, and the one place that labels what foreign code raises.

PosttrainError
├── UsageError                wrong use or a missing prerequisite: one line, exit 2, nothing left behind
│   └── MissingExtra          an optional dependency group is not installed
├── SubmissionFault           what was handed in is at fault, never counted as a score
│   ├── Rejected              against the rules
│   └── Unloadable            the checkpoint cannot be read as a fine-tune of the base
├── InfrastructureError       we are at fault: retried once with identical settings, then verdict `error`
│   ├── WorkerDied            a child process ended before it answered
│   ├── GradingTimeout        a grading outran its limit and its processes were killed
│   ├── StorageFull           the copy of a submission did not fit on the disk
│   └── DeviceBusy            the share of device memory that grading needs is not free
├── PluginError               a task or an agent folder raised; the message names it
├── LedgerError               the record of a run does not agree with itself
└── Stopped                   a signal asked the run to end
"""

from __future__ import annotations

import signal as signals
from collections.abc import Iterator
from contextlib import contextmanager


class PosttrainError(Exception):
    """Base of all errors that posttrain raises on purpose."""


class UsageError(PosttrainError):
    """The caller must change something first; the text names the field and the remedy."""


class MissingExtra(UsageError):
    """A command needs an optional dependency group that is not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the extra {extra!r}: pip install 'posttrain[{extra}]'")
        self.extra = extra


class SubmissionFault(PosttrainError):
    """A submission that gets no score for a reason that lies in the submission itself."""

    def __init__(self, reason: str, *, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        """What the agent can do about it, in a sentence."""


class Rejected(SubmissionFault):
    """Against the rules of the lab."""


class Unloadable(SubmissionFault):
    """Not a complete checkpoint of the base's architecture."""


class InfrastructureError(PosttrainError):
    """The lab failed; nothing about the submission is known."""

    hint = "Nothing is wrong with the submission as far as the lab knows; hand it in again."


class WorkerDied(InfrastructureError):
    """A child process ended, or answered nonsense, before it gave its result."""


class GradingTimeout(InfrastructureError):
    """One grading took longer than `--grading-timeout`."""


class StorageFull(InfrastructureError):
    """No space left while copying a submission."""

    hint = "The lab's disk is full; free space or submit a smaller dtype, then hand it in again."


class DeviceBusy(InfrastructureError):
    """Device memory that grading was promised is in use by another process."""

    hint = "Free device memory (grading needs its share, see instructions.md), then hand it in again."


class PluginError(PosttrainError):
    """Code or data of a task or agent folder failed."""


class LedgerError(PosttrainError):
    """The chain of a ledger is broken at a place where a torn write cannot explain it."""


class Stopped(PosttrainError):
    """A signal asked the run to end; `exit_code` is the shell's convention of 128 + number."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signals.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        return 128 + self.signum


@contextmanager
def boundary(kind: type[PosttrainError], doing: str) -> Iterator[None]:
    """Turn any exception of foreign code into `kind`, saying what was being done.

    Errors of our own tree pass through unchanged. This is the only place that catches broadly.
    """
    try:
        yield
    except PosttrainError:
        raise
    except Exception as error:
        detail = f"{type(error).__name__}: {error}".strip().removesuffix(":")
        raise kind(f"{doing}: {detail}") from error
