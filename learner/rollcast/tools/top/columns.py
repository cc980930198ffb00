"""Columns of the tables of `rollcast top`; a narrow terminal shows only some of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers or words; shown if the terminal is at least `from_width` characters wide."""

    name: str
    width: int
    from_width: int
    justify: Literal["left", "right"] = "right"


def shown(columns: Iterable[Column], width: int) -> tuple[Column, ...]:
    """Returns the columns that a terminal of this width shows."""
    return tuple(column for column in columns if width >= column.from_width)


def total_width(columns: Iterable[Column]) -> int:
    """Returns the total width of columns, including the gap before each."""
    return sum(column.width + 1 for column in columns)


def titles(columns: Iterable[Column]) -> dict[Column, str]:
    """Returns the names of columns, as the values of the heading."""
    return {column: column.name for column in columns}


def append(row: Text, columns: Iterable[Column], values: Mapping[Column, str], style: str = "") -> None:
    """Appends the values of columns to a row; cuts values that are longer than their column.

    Args:
        row: The row so far.
        columns: The columns to show.
        values: Their values, without control characters; a column without one stays empty.
        style: The style of the values.
    """
    for column in columns:
        cell = Text(values.get(column, ""))
        cell.truncate(column.width, overflow="ellipsis")
        cell.align(column.justify, column.width)
        row.append(f" {cell.plain}", style)
