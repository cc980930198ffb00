"""Begins and ends a command's process: Ctrl-C shows no traceback, and no thread aborts the process at its end."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Final, NoReturn

# The exit code that shells use: 128 plus the number of the signal.
INTERRUPTED: Final = 128 + signal.SIGINT
# The exit code that Python uses when the last of what was printed cannot be written: the disk is full, say.
_NOT_FLUSHED: Final = 120
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
    if not hasattr(signal, "pthread_sigmask"):  # Windows: nothing can be held back
        yield
        return
    # multiprocessing would start it with the first process, and deliver signals then.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_to_end(run: Callable[[], int]) -> NoReturn:
    """Runs a command, and ends the process with its exit code; 130 after Ctrl-C.

    The process ends as Python ends it, except that no module is torn down. Daemon threads run on while that happens,
    and one of them that returns from C++ to Python then, such as from torch, aborts the process: "terminate called
    without an active exception". It would take seconds, too, if torch is loaded. After Ctrl-C no thread is waited for.

    Args:
        run: The command; returns its exit code.
    """
    try:
        exit_code = _exit_code_of(run)
        if exit_code != INTERRUPTED:
            # waits for all threads that are not daemons, as Python does
            threading._shutdown()  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        exit_code = INTERRUPTED
    # A Ctrl-C from now on would leave temporary folders behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            exit_code = exit_code or _NOT_FLUSHED
    os._exit(exit_code)


def _exit_code_of(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    except Exception:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1


def _end_or_raise(number: int, frame: FrameType | None) -> None:
    del number
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt
