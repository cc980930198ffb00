"""Handles Ctrl-C while a process starts: no traceback from it, nor from the processes that it starts."""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Final, NoReturn

# The exit code that shells use: 128 plus the number of the signal.
INTERRUPTED: Final = 128 + signal.SIGINT
_IMPORTING: Final = "<frozen importlib._bootstrap>"


def end_imports_quietly() -> None:
    """Makes a Ctrl-C during an import end the process at once, silently, with exit code 130.

    An exception there would show a traceback of foreign modules, or leave a module half imported. Anywhere else a
    Ctrl-C remains a KeyboardInterrupt. Call it first of all, in the main thread of a rollcast process. Does nothing if
    another handler is installed, or Ctrl-C is ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_or_raise)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delays a Ctrl-C until the body has ended. A process started in the body never gets one.

    Ctrl-C goes to all processes of a terminal. A new process would print a traceback of its imports; its parent ends it
    instead.
    """
    # multiprocessing would start it with the first process, and deliver signals then.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_now(exit_code: int) -> NoReturn:
    """Ends the process: runs the registered exit functions, but waits for no thread and tears down no module.

    Tearing modules down takes seconds if torch is loaded. A Ctrl-C meanwhile is ignored: it would leave temporary
    folders behind.

    Args:
        exit_code: The exit code of the process.
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
