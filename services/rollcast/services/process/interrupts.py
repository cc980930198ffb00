"""Starts and ends a command's process, without a traceback on Ctrl-C or an abort at exit."""

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

from rollcast.services.process.output import write_error

# The exit code that shells use: 128 plus the number of the signal.
INTERRUPTED: Final = 128 + signal.SIGINT
# The exit code that Python uses if it cannot write the last output, for example because the disk is full.
_NOT_FLUSHED: Final = 120
_IMPORTING: Final = "<frozen importlib._bootstrap>"


def end_imports_quietly() -> None:
    """Makes Ctrl-C during an import end the process silently, with exit code 130.

    An exception during an import would show a traceback of other modules, or leave a module half imported. Outside
    imports, Ctrl-C still raises KeyboardInterrupt. Call this first, in the main thread of a rollcast process. The call
    has no effect if another handler is installed, or if the process ignores Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_or_raise)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delays Ctrl-C until the end of the `with` block. A process started in the block never receives Ctrl-C.

    Ctrl-C reaches all processes of a terminal. A new process would print a traceback of its imports, so its parent ends
    it instead.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows, which cannot block signals
        yield
        return
    # Otherwise multiprocessing would start it with the first process, and deliver signals then.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_to_end(run: Callable[[], int]) -> NoReturn:
    """Runs a command, and ends the process with the command's exit code, or with 130 after Ctrl-C.

    The process ends like a Python process, but without tearing down modules. During a teardown, a daemon thread that
    returns from C++ (for example torch) aborts the process: "terminate called without an active exception". A teardown
    with torch would also take seconds. After Ctrl-C, the process does not wait for threads.

    Args:
        run: The command, which returns its exit code.
    """
    _hold_closed_descriptors()
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
            if stream is not None:  # None: closed before the start
                stream.flush()
        except (OSError, ValueError):
            exit_code = exit_code or _NOT_FLUSHED
    os._exit(exit_code)


def _hold_closed_descriptors() -> None:
    """Opens the null device in place of a closed stdin, stdout or stderr.

    Otherwise the next file or socket would take its number, and libraries would write their messages into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one


def _exit_code_of(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        write_error(f"{error.code}\n")
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
