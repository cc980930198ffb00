import threading
from types import SimpleNamespace

import pytest

from rollcast.actor.acting import step_watchdog
from rollcast.actor.acting.step_watchdog import StepWatchdog
from rollcast.services.errors import ConfigurationError


def hang_here(released: threading.Event) -> bool:
    return released.wait(20)


def test_a_step_that_hangs_is_told_once_with_its_stack():
    told, released = [], threading.Event()

    def on_hang(seconds: float, stack: str) -> None:
        told.append((seconds, stack))
        released.set()

    with StepWatchdog(0.05, on_hang) as watchdog:
        watchdog.beat()
        assert hang_here(released), "it was noticed"
    ((seconds, stack),) = told
    assert seconds > 0.05
    assert "in hang_here" in stack


def test_nothing_is_told_of_one_who_rests(monkeypatch: pytest.MonkeyPatch):
    """As one does who waits for the learner; many limits pass meanwhile, and none while it acts."""
    told, now = [], 0.0
    monkeypatch.setattr(step_watchdog, "time", SimpleNamespace(monotonic=lambda: now))
    with StepWatchdog(0.02, lambda *hang: told.append(hang)) as watchdog:
        for _ in range(2):
            watchdog.beat()
            watchdog.rest()
            now += 60.0
            threading.Event().wait(0.1)
    assert told == []


def test_the_limit_is_positive():
    with pytest.raises(ConfigurationError, match="step_timeout_s is 0"):
        StepWatchdog(0, lambda *_: None)
