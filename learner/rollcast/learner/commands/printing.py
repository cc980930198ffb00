"""Prints the output of commands. Texts may come from other machines, so they are escaped and never read as markup."""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from rollcast.services.process.printable import printable


def print_line(console: Console, line: str) -> None:
    """Prints a line without wrapping it to the width of the terminal."""
    console.print(printable(line), soft_wrap=True, highlight=False, markup=False, emoji=False)


def print_json(console: Console, document: Any) -> None:  # noqa: ANN401 - whatever JSON has
    """Prints a document as JSON in ASCII, because JSON itself allows C1 characters and bidirectional overrides."""
    console.print_json(json.dumps(document), ensure_ascii=True)


def cell(text: str) -> Text:
    """Returns a cell of a table, escaped."""
    return Text(printable(text))
