"""Lists the signals that stop a process of rollcast."""

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that need a handler: SIGTERM, and SIGINT unless it is ignored.

    A shell makes the background processes of a script ignore SIGINT, so that Ctrl-C ends only the foreground. Such a
    process keeps ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return (signal.SIGINT, signal.SIGTERM)
