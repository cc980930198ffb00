import signal

import pytest

from rollcast.services.process.stop_signals import stop_signals


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
