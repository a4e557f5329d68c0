"""Signals in this process: what Python does with them is not ours to simulate."""

import gc
import signal
import sys
import threading
import time

import pytest

from isocompute_jax.experiment import progress as module
from isocompute_jax.experiment.progress import Interrupt


def test_the_first_signal_asks_and_the_second_raises():
    """Not the same signal, come by two ways."""
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.requested
        signal.raise_signal(signal.SIGINT)
        time.sleep(module.APART_S)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_signal_within_a_callback_of_the_garbage_collector_is_not_lost():
    def second(_phase: str, _info: dict) -> None:
        gc.callbacks.remove(second)
        signal.raise_signal(signal.SIGINT)

    before = sys.unraisablehook
    with Interrupt() as interrupt:
        interrupt.requested = True
        gc.callbacks.append(second)
        with pytest.raises(KeyboardInterrupt):
            gc.collect()  # Python drops what the callback raises
            time.sleep(60)
    assert sys.unraisablehook is before


def test_nor_is_one_whose_thread_starts_slowly(monkeypatch):
    """On a busy machine: the signal must not come again while Python still reports the first as dropped."""
    start = threading.Timer.start

    def slowly(self) -> None:
        start(self)
        time.sleep(0.2)

    def second(_phase: str, _info: dict) -> None:
        gc.callbacks.remove(second)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Timer, "start", slowly)
    with Interrupt() as interrupt:
        interrupt.requested = True
        gc.callbacks.append(second)
        with pytest.raises(KeyboardInterrupt):
            gc.collect()
            time.sleep(60)


def test_what_else_is_dropped_is_reported_as_ever(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    def fails(_phase: str, _info: dict) -> None:
        gc.callbacks.remove(fails)
        raise ValueError("of a callback")

    with Interrupt():
        gc.callbacks.append(fails)
        gc.collect()
    assert [dropped.exc_type for dropped in seen] == [ValueError]


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
