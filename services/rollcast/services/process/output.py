"""Writes the output of commands, whose reader may end early."""

import contextlib
import os
import sys
from typing import IO


def write_output(output: IO[str], text: str) -> None:
    """Writes a text at once. If the reader has read enough, as `head` does, the command ends with exit code 0.

    Raises:
        SystemExit: With code 0, if nobody reads the output any more.
        OSError: The output cannot be written for another reason, such as a full disk.
    """
    try:
        output.write(text)
        output.flush()
    except BrokenPipeError:
        discard(output)
        raise SystemExit(0) from None


def write_error(text: str) -> None:
    """Writes a text to stderr if it can be written. If not, the exit code alone reports the error."""
    # None: closed before the start. ValueError: closed since.
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def discard(output: IO[str]) -> None:
    """Redirects an output to the null device, because Python flushes it again at the end and would report an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output.fileno())
    os.close(nowhere)
