"""Text from elsewhere, made fit for terminals and logs: nothing in it moves the cursor or passes for another line."""

import logging
import sys
from typing import Final

# Before every line but the first: a line of a log begins with its time, so none of these can pass for one.
_INDENT: Final = "    "
# Harmless, and common in tracebacks.
_TAB: Final = "\t"


def printable(text: str) -> str:
    r"""Escapes what a terminal or a reader would not see as a character.

    Control characters (ESC, OSC, C1, line breaks), bidirectional overrides, invisible characters and lone surrogates
    become `\x1b`, `\u202e` and so on. Doing it twice changes nothing.

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
    r"""Escapes text of several lines, a traceback for example, and indents every line but the first.

    Args:
        text: From anywhere. Only `\n` separates lines; `printable` escapes every other line break.

    Returns:
        The lines, without empty ones at the end.
    """
    if text.isprintable():
        return text
    lines = (_TAB.join(map(printable, line.split(_TAB))) for line in text.rstrip("\n").split("\n"))
    return f"\n{_INDENT}".join(lines)


class PrintableFormatter(logging.Formatter):
    """A formatter whose records begin at the margin and have nothing else there: the only edge of our logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record; see `printable_lines`."""
        return printable_lines(super().format(record))


def log_to_stderr(level: str, *, name: str = "") -> None:
    """Sends the logs of this process to stderr, unless they go somewhere already.

    Args:
        level: The least that is logged: `"INFO"`.
        name: Who logs, after the time; empty: nobody in particular.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(f"%(asctime)s {name + ' ' if name else ''}%(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
