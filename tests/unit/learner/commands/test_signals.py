import signal

import pytest

from rollcast.learner.commands.signals import stop_on_signals


def test_second_ctrl_c_hurries_and_further_ones_have_no_effect():
    calls = []

    def body() -> None:
        with stop_on_signals(lambda: calls.append("stop"), lambda: calls.append("hurry")):
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                calls.append("tidied")

    with pytest.raises(KeyboardInterrupt):
        body()
    assert calls == ["stop", "hurry", "tidied"]


def test_ctrl_c_after_sigterm_stops_again():
    calls = []
    with stop_on_signals(lambda: calls.append("stop")) as received:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGTERM, signal.SIGINT]
    assert calls == ["stop", "stop"]


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signals(lambda: None):
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
