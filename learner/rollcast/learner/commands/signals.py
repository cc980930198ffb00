"""Handles the signals that end a command: the first signal asks it to stop, and a second Ctrl-C ends its waits."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from rollcast.services.process.stop_signals import stop_signals


@contextlib.contextmanager
def stop_on_signals(
    stop: Callable[[], object], cancel_waits: Callable[[], object] = lambda: None
) -> Iterator[list[int]]:
    """Calls `stop` at Ctrl-C, SIGTERM or SIGHUP; a second Ctrl-C ends the body with a KeyboardInterrupt.

    Further signals have no effect, so that processes, sockets and files are always cleaned up.

    Args:
        stop: Called by the first signal, in the handler: it takes no locks, or is made by `safe_in_handlers`. It may
            raise before there is a run to stop.
        cancel_waits: Called by the second Ctrl-C, to clean up without waits. In the handler, too.

    Yields:
        The signals received so far.
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
            cancel_waits()
            raise KeyboardInterrupt
        received.append(number)
        stop()

    before = {number: signal.signal(number, on_signal) for number in stop_signals()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
