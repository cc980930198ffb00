import logging

import pytest

from rollcast.services.process.repeated_lines import RepeatedLines


class Log:
    """A log with a bound, whose clock stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())
        handler.addFilter(RepeatedLines(lambda: self.now))
        self.logger = logging.Logger("log", logging.DEBUG)
        self.logger.addHandler(handler)

    def say(self, n: int, level: int = logging.WARNING) -> None:
        for number in range(n):
            self.logger.log(level, "actor %d was lost", number)


@pytest.fixture
def log():
    return Log()


def test_what_comes_too_often_is_left_out_and_counted(log):
    log.say(10_000)
    assert log.lines == [f"actor {number} was lost" for number in range(100)]
    log.now = 2.0
    log.say(1)
    assert log.lines[100:] == ["actor 0 was lost (and 9,900 such lines omitted)"]
    log.say(1)
    assert log.lines[101:] == ["actor 0 was lost"]


def test_an_endless_flood_is_so_many_lines_a_second(log):
    for _ in range(1000):
        log.now += 0.1
        log.say(10)
    assert 200 - 2 <= len(log.lines) <= 200 + 2


def test_other_lines_are_written_during_a_flood(log):
    log.say(1000)
    log.logger.error("the disk is full")
    assert log.lines[-1] == "the disk is full"


def test_what_was_asked_for_is_all_there(log):
    log.say(1000, logging.DEBUG)
    assert len(log.lines) == 1000
