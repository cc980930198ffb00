"""Prints the output of commands. Texts may come from other machines, so they are escaped.

It needs no package: `status`, `doctor`, `evaluate` and `record` run in a plain installation, too.
"""

import json
import os
from collections.abc import Iterable, Sequence
from typing import IO, Any

from rollcast.services.process.printable import printable


def print_line(output: IO[str], line: str) -> None:
    """Prints a line without wrapping it to the width of the terminal."""
    _write(output, printable(line))


def print_json(output: IO[str], document: Any) -> None:  # noqa: ANN401 - whatever JSON has
    """Prints a document as JSON in ASCII, because JSON itself allows C1 characters and bidirectional overrides."""
    _write(output, json.dumps(document, indent=2))


def print_table(output: IO[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows of equally many cells in columns, each as wide as its longest cell."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print_line(output, "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def number_or_dash(value: float | None) -> str:
    """Returns a number with one decimal; "-" if it is unknown."""
    return "-" if value is None else f"{value:.1f}"


def _write(output: IO[str], text: str) -> None:
    try:
        output.write(text + "\n")
        output.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does. Python flushes once more at its end and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        raise SystemExit(1) from None
