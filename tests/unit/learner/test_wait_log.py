import logging

import pytest

from rollcast.learner.wait_log import WaitLog


def test_a_wait_is_logged_after_ten_seconds_and_then_each_minute(caplog: pytest.LogCaptureFixture):
    log = WaitLog()
    with caplog.at_level(logging.INFO):
        for seconds in range(200):
            log.note(f"{seconds} things", float(seconds))
    assert caplog.messages == [f"waiting {seconds} s for {seconds} things" for seconds in (10, 70, 130, 190)]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_another_wait_begins_anew(caplog: pytest.LogCaptureFixture):
    log = WaitLog()
    with caplog.at_level(logging.INFO):
        for seconds in (9.9, 10.0, 0.1, 9.9, 12.0):
            log.note("rollouts", seconds)
    assert caplog.messages == ["waiting 10 s for rollouts", "waiting 12 s for rollouts"]
