"""Determines the signals that stop a process of rollcast, and makes functions safe in their handlers."""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")

# The signals that a terminal sends; Windows has no SIGHUP.
_OF_TERMINAL: Final = tuple(signal.Signals[name] for name in ("SIGINT", "SIGHUP") if name in signal.Signals.__members__)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that need a handler: SIGTERM, and SIGINT and SIGHUP unless the process ignores them.

    A shell makes the background processes of a script ignore SIGINT, so that Ctrl-C ends only the foreground. `nohup`
    makes a process ignore SIGHUP, which a closing terminal sends. Such a process continues to ignore the signal.
    """
    heeded = [number for number in _OF_TERMINAL if signal.getsignal(number) is not signal.SIG_IGN]
    return (signal.SIGTERM, *heeded)


def ignore_terminal() -> None:
    """Ignores the signals that a terminal sends to all its processes: SIGINT on Ctrl-C, and SIGHUP when it closes.

    Call this in a process that its parent ends.
    """
    for number in _OF_TERMINAL:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def safe_in_handlers(function: Callable[[*_Arguments], object]) -> Iterator[Callable[[*_Arguments], None]]:
    """Yields a function for signal handlers, which makes a thread call the given function.

    A handler runs between any two steps of the main thread, so the main thread may hold a lock at that time: that of an
    event on which it waits, or one of `threading`'s own while it joins a thread. A handler that sets this event, starts
    a thread, or logs would wait for the lock forever.

    The thread starts before the block, because a handler cannot start it. The end of the block waits for the calls so
    far. Later calls, and calls in a forked process, have no effect.

    Args:
        function: Called with the same arguments, in order. It may take locks, and does not raise.
    """
    calls: queue.SimpleQueue[tuple[*_Arguments] | None] = queue.SimpleQueue()  # its `put` is safe in handlers

    def run() -> None:
        while (arguments := calls.get()) is not None:
            function(*arguments)

    thread = threading.Thread(target=run, name="rollcast-signals", daemon=True)
    thread.start()
    try:
        yield lambda *arguments: calls.put(arguments)
    finally:
        calls.put(None)
        thread.join()
