import logging
import threading

import pytest

from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.training.stall_watchdog import StallWatchdog
from tests.processes import wait_until


def stuck_here(released: threading.Event) -> None:
    released.wait(20)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("", ["has made no progress for 0 s, and waits for nothing", "waits for nothing:\n"]),
        ("rollouts", ["and waits for rollouts:\n"]),
    ],
)
def test_a_stall_is_told_and_then_shown(reason, expected, caplog):
    caplog.set_level(logging.WARNING)
    released = threading.Event()
    trainer = threading.Thread(target=stuck_here, args=(released,), name="the trainer")
    trainer.start()
    try:
        memory = RunHistory()
        with StallWatchdog(
            lambda: 7, lambda: (reason, 1.0), lambda: False, notice_s=0.04, stacks_s=0.2, note=memory.note
        ):
            wait_until(lambda: len(memory.news(None).events) == 2, "both notes")
    finally:
        released.set()
        trainer.join()
    assert "in stuck_here" in caplog.text
    assert len(caplog.records) == len(expected), "each is said once"
    first, second = memory.news(None).events
    assert first.text == f"training has made no progress for 0 s; it waits for {reason or 'nothing'}"
    assert second.text == f"training has made no progress for 0 s, and waits for {reason or 'nothing'}"
    assert "in stuck_here" in second.detail
    for record, text in zip(caplog.records, expected, strict=True):
        assert text in record.message


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
