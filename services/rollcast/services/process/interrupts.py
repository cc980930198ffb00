"""Ctrl-C while a process begins: it ends without a traceback, and processes that it starts do not print one either."""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Final, NoReturn

# As shells have it: 128 and the number of the signal.
INTERRUPTED: Final = 128 + signal.SIGINT
_IMPORTING: Final = "<frozen importlib._bootstrap>"


def end_imports_quietly() -> None:
    """Has a Ctrl-C that comes in the middle of an import end the process at once, with exit code 130 and no word.

    An exception there ends in a traceback of modules that nobody has asked for, or in a module that is half there.
    Anywhere else a Ctrl-C is a KeyboardInterrupt, as ever. For the main thread of a process of ours, first of all. Does
    nothing where somebody else handles Ctrl-C, or ignores it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_or_raise)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delivers a Ctrl-C that comes in the body after it. A process that is started in the body never gets any.

    Ctrl-C goes to all processes of a terminal. One that was just started would print a traceback of its imports; it is
    ended by the process that has started it.
    """
    # multiprocessing starts it before the first process, and delivers signals then
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_now(exit_code: int) -> NoReturn:
    """Ends the process: runs what is registered for its end, and waits neither for threads nor for modules.

    To take modules apart takes seconds where torch is among them. A Ctrl-C that comes meanwhile is ignored: it would
    leave temporary folders behind.

    Args:
        exit_code: Of the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def _end_or_raise(number: int, frame: FrameType | None) -> None:
    del number
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt
