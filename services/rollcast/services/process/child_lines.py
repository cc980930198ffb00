"""Passes on what child processes write to a terminal, so that their lines appear above a live view of this process."""

import contextlib
import multiprocessing
import os
import sys
import threading
from multiprocessing.connection import Connection, wait
from typing import Final

_STDERR: Final = 2
_CHUNK: Final = 1 << 16
# A longer line is passed on in pieces.
_MAX_LINE_BYTES: Final = 1 << 16
# Seconds that the last lines may take at the end.
_CLOSE_TIMEOUT_S: Final = 1.0


class ChildLines:
    """The lines that child processes write to stderr, written to the current `sys.stderr` of this process.

    A child inherits the file, not the `sys.stderr` of its parent, and would write into the middle of a live view.
    Without a terminal there is no view, and children keep the inherited file. One thread at a time calls the methods;
    another thread, `rollcast-child-lines`, reads and writes.
    """

    def __init__(self) -> None:
        self._sender: Connection | None = None
        self._ending: Connection | None = None
        self._thread: threading.Thread | None = None

    def sender(self) -> Connection | None:
        """Returns the argument of `write_to_parent` for a child; None if stderr is not a terminal."""
        if self._sender is None and os.isatty(_STDERR):
            receiver, self._sender = multiprocessing.Pipe(duplex=False)
            ended, self._ending = multiprocessing.Pipe(duplex=False)
            self._thread = threading.Thread(
                target=_pass_on, args=(receiver, ended), name="rollcast-child-lines", daemon=True
            )
            self._thread.start()
        return self._sender

    def close(self) -> None:
        """Writes the last lines. Call it after the children have ended. Idempotent."""
        if self._sender is None or self._ending is None or self._thread is None:
            return
        self._sender.close()
        self._ending.close()
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._sender = self._ending = self._thread = None


def write_to_parent(sender: Connection) -> None:
    """Makes a child process, and the processes that it starts, write their stderr to the parent.

    Args:
        sender: The result of the parent's `ChildLines.sender`.
    """
    os.dup2(sender.fileno(), _STDERR)
    sender.close()
    # A forked child would draw the parent's view.
    sys.stderr = sys.__stderr__


def _pass_on(receiver: Connection, ended: Connection) -> None:
    """Thread: writes lines until no process can write any more, or until it is to end and has written all of them."""
    rest = b""
    with receiver, ended:
        while True:
            if receiver not in wait([receiver, ended]):
                break
            chunk = os.read(receiver.fileno(), _CHUNK)
            if not chunk:
                break
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                _write(lines)
            if len(rest) > _MAX_LINE_BYTES:
                _write(rest)
                rest = b""
    if rest:
        _write(rest)


def _write(lines: bytes) -> None:
    # The children must not wait if nobody can read their lines.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{lines.decode(errors='replace')}\n")
        sys.stderr.flush()
