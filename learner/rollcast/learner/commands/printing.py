"""What commands print: every text may come from elsewhere, so none of it is markup, and all of it is printable."""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from rollcast.services.process.printable import printable


def print_line(console: Console, line: str) -> None:
    """Prints a line as it is, whatever the width of the terminal."""
    console.print(printable(line), soft_wrap=True, highlight=False, markup=False, emoji=False)


def print_json(console: Console, document: Any) -> None:  # noqa: ANN401 - whatever JSON has
    """Prints a document as JSON, in ASCII: JSON itself lets C1 characters and bidirectional overrides through."""
    console.print_json(json.dumps(document), ensure_ascii=True)


def cell(text: str) -> Text:
    """Returns a cell of a table."""
    return Text(printable(text))
