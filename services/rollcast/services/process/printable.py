"""Makes foreign text safe for terminals and logs: it can neither move the cursor nor imitate a log line."""

import logging
import sys
from typing import Final, TextIO

from rollcast.services.process.repeated_lines import RepeatedLines

# Put before every line but the first. A line of a log begins with its time, so these cannot imitate one.
_INDENT: Final = "    "
# Harmless, and common in tracebacks.
_TAB: Final = "\t"


def printable(text: str) -> str:
    r"""Escapes everything that a terminal or a reader would not see as a character.

    Control characters (ESC, OSC, C1, line breaks), bidirectional overrides, invisible characters and lone surrogates
    become `\x1b`, `\u202e` and so on. A second time changes nothing.

    Args:
        text: One line, from anywhere.

    Returns:
        One line.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def printable_lines(text: str) -> str:
    r"""Escapes text of several lines, such as a traceback, and indents every line but the first.

    Args:
        text: Text from anywhere. Only `\n` separates lines; `printable` escapes every other line break.

    Returns:
        The lines, without empty ones at the end.
    """
    if text.isprintable():
        return text
    lines = (_TAB.join(map(printable, line.split(_TAB))) for line in text.rstrip("\n").split("\n"))
    return f"\n{_INDENT}".join(lines)


class PrintableFormatter(logging.Formatter):
    """A formatter that escapes records, and indents all their lines but the first."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record; see `printable_lines`."""
        return printable_lines(super().format(record))


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the time: while the live view draws, that prints above it."""

    @property
    def stream(self) -> TextIO:
        """The stream to write to."""
        return sys.stderr

    @stream.setter
    def stream(self, _stream: TextIO) -> None:
        """Ignores the stream that the base class sets."""


def log_to_stderr(level: str, *, name: str = "") -> None:
    """Sends the logs of this process to stderr, unless they already go somewhere; see `RepeatedLines`.

    Args:
        level: The lowest level that is logged: `"INFO"`.
        name: A name to show after the time; empty: none.
    """
    handler = _StderrHandler()
    handler.setFormatter(PrintableFormatter(f"%(asctime)s {name + ' ' if name else ''}%(levelname)s %(message)s"))
    handler.addFilter(RepeatedLines())
    logging.basicConfig(level=level, handlers=[handler])
