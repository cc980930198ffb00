"""The signals that stop a process of rollcast."""

import signal
from typing import Final

# The signals that a terminal sends; Windows has no SIGHUP.
_OF_TERMINAL: Final = tuple(signal.Signals[name] for name in ("SIGINT", "SIGHUP") if name in signal.Signals.__members__)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that need a handler: SIGTERM, and SIGINT and SIGHUP unless they are ignored.

    A shell makes the background processes of a script ignore SIGINT, so that Ctrl-C ends only the foreground. `nohup`
    makes a process ignore SIGHUP, which a terminal sends when it is closed. Such a process keeps ignoring it.
    """
    heeded = [number for number in _OF_TERMINAL if signal.getsignal(number) is not signal.SIG_IGN]
    return (signal.SIGTERM, *heeded)


def ignore_terminal() -> None:
    """Ignores the signals that a terminal sends to all of its processes: Ctrl-C, and SIGHUP when it is closed.

    For a process that its parent ends.
    """
    for number in _OF_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
