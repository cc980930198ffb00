"""Escapes untrusted text for terminals and logs, so that it can neither move the cursor nor imitate a log line."""

import logging
import sys
from typing import Final, TextIO

from rollcast.services.process.repeated_lines import RepeatedLines

# Precedes every line except the first. A log line begins with its time, so these lines cannot imitate one.
_INDENT: Final = "    "
# Harmless, and common in tracebacks.
_TAB: Final = "\t"


def printable(text: str) -> str:
    r"""Escapes all code points that are not visible characters.

    Control characters (ESC, OSC, C1, line breaks), bidirectional overrides, invisible characters and lone surrogates
    become `\x1b`, `\u202e` and so on. Idempotent.

    Args:
        text: One line, which may be untrusted.

    Returns:
        One line.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def printable_lines(text: str) -> str:
    r"""Escapes text of several lines, such as a traceback, and indents every line except the first.

    Args:
        text: Text, which may be untrusted. Only `\n` separates lines; `printable` escapes other line breaks.

    Returns:
        The lines, without empty lines at the end.
    """
    if text.isprintable():
        return text
    lines = (_TAB.join(map(printable, line.split(_TAB))) for line in text.rstrip("\n").split("\n"))
    return f"\n{_INDENT}".join(lines)


class PrintableFormatter(logging.Formatter):
    """A formatter that escapes records, and indents every line except the first."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record; see `printable_lines`."""
        return printable_lines(super().format(record))


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current value of `sys.stderr`, because the live view replaces it to print above itself."""

    @property
    def stream(self) -> TextIO:
        """The current `sys.stderr`."""
        return sys.stderr

    @stream.setter
    def stream(self, _stream: TextIO) -> None:
        """Ignores the stream that the base class sets."""


def log_to_stderr(level: str, *, name: str = "") -> None:
    """Sends the logs of this process to stderr, unless logging is already configured. `RepeatedLines` limits the lines.

    Args:
        level: The lowest logged level, such as `"INFO"`.
        name: A name to show after the time; empty: no name.
    """
    handler = _StderrHandler()
    handler.setFormatter(PrintableFormatter(f"%(asctime)s {name + ' ' if name else ''}%(levelname)s %(message)s"))
    handler.addFilter(RepeatedLines())
    logging.basicConfig(level=level, handlers=[handler])
