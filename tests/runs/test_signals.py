"""Signals end a run only where it can be left."""

import os
import signal
from collections.abc import Iterator

import pytest

from posttrain.core.errors import Stopped
from posttrain.runs.signals import StopSignals


@pytest.fixture(autouse=True)
def _handlers_as_they_were() -> Iterator[None]:
    """A stopped process ignores signals to its end; this one goes on with other tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_waits_for_an_interruptible_place() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        reached = True
        with pytest.raises(Stopped) as stopped, signals.interruptible():
            reached = False
    assert reached
    assert stopped.value.exit_code == 143


def test_a_signal_inside_an_interruptible_place_raises_there() -> None:
    with StopSignals() as signals, pytest.raises(Stopped) as stopped, signals.interruptible():
        os.kill(os.getpid(), signal.SIGINT)
    assert stopped.value.exit_code == 130


def test_later_signals_do_not_disturb_the_closing() -> None:
    with StopSignals() as signals:
        with pytest.raises(Stopped), signals.interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        with signals.interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGINT


def test_sighup_ignored_at_the_start_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals, signals.interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_after_a_stop_no_signal_disturbs_the_way_out() -> None:
    with StopSignals() as signals, pytest.raises(Stopped), signals.interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
