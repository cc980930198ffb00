"""Signals that stop a process."""

import signal

import pytest

from rollcast.services.process.stop_signals import stop_signals


@pytest.fixture
def sigint():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
def test_leaves_ctrl_c_alone_if_it_is_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert stop_signals() == (signal.SIGTERM,)


@pytest.mark.usefixtures("sigint")
def test_handles_ctrl_c_otherwise():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert stop_signals() == (signal.SIGINT, signal.SIGTERM)
