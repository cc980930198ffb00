"""Determines the signals that stop a process of rollcast."""

import signal
from typing import Final

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
