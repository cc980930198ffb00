"""A signal stops an actor at whatever time it comes."""

import io
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from rollcast.actor.acting.process import act, stop_on_signals
from rollcast.actor.settings import ActorSettings
from rollcast.services.process.stop_signals import stop_signals
from tests.processes import DEADLINE_S, environment


class InterruptedFile(io.RawIOBase):
    """A file whose first write is interrupted by SIGTERM."""

    def __init__(self) -> None:
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, part: bytes) -> int:
        is_first, self.written = not self.written, self.written + bytes(part)
        if is_first:
            signal.raise_signal(signal.SIGTERM)
        return len(part)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in stop_signals()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_while_the_log_is_written_stops_the_actor_and_is_told():
    file, stop = InterruptedFile(), threading.Event()
    handler = logging.StreamHandler(io.TextIOWrapper(io.BufferedWriter(file), write_through=True))
    logger = logging.getLogger("actor")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with stop_on_signals(stop):
            logger.warning("waiting for the learner")
            assert stop.wait(DEADLINE_S)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert file.written.decode().splitlines() == ["waiting for the learner", "SIGTERM: stopping after this step"]


# The main thread has the lock of its event while it begins to wait, and that of `threading` while it joins a thread;
# Python 3.13 has no such lock.
@pytest.mark.parametrize("lock", ["stop._cond", "getattr(threading, '_shutdown_locks_lock', stop._cond)"])
def test_a_signal_stops_an_actor_whose_main_thread_holds_a_lock(lock: str):
    program = (
        "import os, signal, threading\n"
        "from rollcast.actor.acting.process import stop_on_signals\n"
        "stop = threading.Event()\n"
        "with stop_on_signals(stop):\n"
        f"    with {lock}:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        f"    print(stop.wait({DEADLINE_S}))\n"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment(), text=True, timeout=DEADLINE_S) == "True\n"


class _StopsAtAWarning(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            signal.raise_signal(signal.SIGTERM)


class _SlowSignals(logging.Filter):
    """Holds the line of a signal back, as a busy machine may, until the actor's end is logged or some time is over."""

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = threading.Event()

    def filter(self, record: logging.LogRecord) -> bool:
        if "stopping" in record.getMessage():
            self._has_ended.wait(1.0)
        else:
            self._has_ended.set()
        return True


@pytest.mark.slow
def test_an_actor_that_waits_for_a_learner_says_at_its_end_after_the_signal_that_none_came(
    caplog: pytest.LogCaptureFixture,
):
    address = "unix:/nonexistent/learner"
    logger, handler = logging.getLogger("rollcast.actor.connection.joining"), _StopsAtAWarning()
    actor, slow_signals = logging.getLogger("actor"), _SlowSignals()
    logger.addHandler(handler)
    actor.addFilter(slow_signals)
    try:
        with caplog.at_level(logging.INFO):
            assert act(ActorSettings(learner_address=address, env_id="CartPole-v1"), io.StringIO()) == 0
    finally:
        logger.removeHandler(handler)
        actor.removeFilter(slow_signals)
    assert "waiting for the learner" in caplog.text
    assert caplog.messages[-2:] == [
        "SIGTERM: stopping after this step",
        f"stopped: no learner had answered at {address}",
    ]
