"""The signals that stop a process of rollcast."""

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals to install a handler for: SIGTERM, and SIGINT unless it is ignored.

    A shell has what a script starts in the background ignore SIGINT: Ctrl-C ends only what is in the foreground. Such a
    process goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return (signal.SIGINT, signal.SIGTERM)
