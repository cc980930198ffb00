import contextlib
import logging
import threading
from collections.abc import Iterator

import pytest

from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.training.stall_watchdog import StallWatchdog
from rollcast.services.history.history import EventSeverity
from tests.processes import DEADLINE_S


def stuck_here(released: threading.Event) -> None:
    assert released.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("", ["has made no progress for 0 s, and waits for nothing: an update takes long", "waits for nothing:\n"]),
        ("rollouts", ["and waits for rollouts:\n"]),
    ],
)
def test_a_stall_is_told_and_then_shown(reason, expected, caplog):
    caplog.set_level(logging.WARNING)
    released, memory = threading.Event(), RunHistory()

    def note(severity: EventSeverity, text: str, **more: str) -> None:
        memory.note(severity, text, **more)
        if len(memory.news(None).events) == 2:
            released.set()

    with (
        # As many as a learner of many actors has: their stacks are longer than the text of an event.
        waiting_threads(100),
        StallWatchdog(lambda: 7, lambda: (reason, 1.0), lambda: False, notice_s=0.04, stacks_s=0.2, note=note),
    ):
        stuck_here(released)
    assert "in stuck_here" in caplog.text
    assert len(caplog.records) == len(expected), "each is said once"
    first, second = memory.news(None).events
    assert first.text == f"training has made no progress for 0 s; it waits for {reason or 'nothing'}"
    assert second.text == f"training has made no progress for 0 s, and waits for {reason or 'nothing'}"
    assert "in stuck_here" in second.detail
    for record, text in zip(caplog.records, expected, strict=True):
        assert text in record.message


@contextlib.contextmanager
def waiting_threads(n: int) -> Iterator[None]:
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_training_that_goes_on_and_waits_that_are_meant_to_last_are_not(caplog):
    caplog.set_level(logging.WARNING)
    steps, asked = iter(range(10**9)), threading.Event()

    def meant_to_last() -> bool:
        if next(steps) > 20:
            asked.set()
        return True

    with StallWatchdog(lambda: 7, lambda: ("", 0.0), meant_to_last, notice_s=0.04, stacks_s=0.1):
        assert asked.wait(20)
    counted, seen = iter(range(10**9)), threading.Event()

    def progress() -> int:
        number = next(counted)
        if number > 20:
            seen.set()
        return number

    with StallWatchdog(progress, lambda: ("", 0.0), lambda: False, notice_s=0.04, stacks_s=0.1):
        assert seen.wait(20)
    assert not caplog.records
