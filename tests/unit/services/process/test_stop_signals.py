import signal
import threading

import pytest

from rollcast.services.process.stop_signals import safe_in_handlers, stop_signals


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_handles_ctrl_c_and_the_end_of_the_terminal():
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP])
def test_leaves_alone_what_is_ignored(ignored):
    signal.signal(ignored, signal.SIG_IGN)
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} - {ignored}


def test_calls_in_a_handler_are_made_in_order_while_the_main_thread_holds_a_lock():
    lock, numbers = threading.Lock(), []

    def note(number: int) -> None:
        with lock:
            numbers.append(number)

    with safe_in_handlers(note) as on_signal:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: on_signal(number))
        with lock:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGINT)
            assert numbers == []
    assert numbers == [signal.SIGHUP, signal.SIGINT], "the end of the block waits for them"
    signal.raise_signal(signal.SIGINT)
    assert numbers == [signal.SIGHUP, signal.SIGINT], "nothing is called after the block"
