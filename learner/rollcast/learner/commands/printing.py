"""Prints the output of commands. Escapes texts, because they may come from other machines.

Imports no other package: `status`, `doctor`, `evaluate` and `record` run in a plain installation, too.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from typing import IO, Any, cast

from rollcast.services.process.output import discard, write_output
from rollcast.services.process.printable import printable

logger = logging.getLogger(__name__)


def print_line(output: IO[str], line: str) -> None:
    """Prints a line without wrapping it at the width of the terminal."""
    write_output(output, f"{printable(line)}\n")


def print_json(output: IO[str], document: Any) -> None:  # noqa: ANN401 - whatever JSON has
    """Prints a document as JSON in ASCII, because JSON itself allows C1 characters and bidirectional overrides."""
    write_output(output, f"{json.dumps(document, indent=2)}\n")


def print_table(output: IO[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows with the same number of cells in columns, each as wide as its longest cell."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print_line(output, "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def lossy(output: IO[str]) -> IO[str]:
    """Returns an output for a command that continues even if its output fails.

    If the terminal is closed, the reader has ended or the disk is full, it warns once and drops all further output.
    """
    return cast("IO[str]", _LossyOutput(output))


class _LossyOutput:
    def __init__(self, output: IO[str]) -> None:
        self._output = output

    def write(self, text: str) -> int:
        try:
            return self._output.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._output.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever outputs have
        return getattr(self._output, name)

    def _lose(self, error: OSError) -> None:
        discard(self._output)
        logger.warning("the output of this command is lost from now on, and the command continues: %s", error)
