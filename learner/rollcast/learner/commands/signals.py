"""Signals that end a command: one asks it to stop, a second Ctrl-C makes it hurry, and none cuts its tidying short."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from rollcast.services.process.stop_signals import stop_signals


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], object], hurry: Callable[[], object] = lambda: None) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM ask the body to end; a second Ctrl-C ends it with a KeyboardInterrupt.

    Further ones change nothing: what puts processes, sockets and files away runs to its end.

    Args:
        stop: Called by the first signal; it may raise, where there is nothing to stop.
        hurry: Called by the second Ctrl-C: what puts things away is to wait for nobody.

    Yields:
        The signals that have come, so far.
    """
    received: list[int] = []
    is_hurried = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_hurried
        del frame
        if is_hurried:
            return
        if number == signal.SIGINT and number in received:
            is_hurried = True
            hurry()
            raise KeyboardInterrupt
        received.append(number)
        stop()

    before = {number: signal.signal(number, on_signal) for number in stop_signals()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
