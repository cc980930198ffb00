"""Draws the relays of a run for `rollcast top`: the number and the state of each relay's actors."""

from typing import Final

from rich.cells import cell_len
from rich.text import Text

from rollcast.services.status.numbers import count, short_count
from rollcast.tools.top import columns as top_columns
from rollcast.tools.top.columns import Column
from rollcast.tools.watching.relays import RelayActors
from rollcast.tools.watching.wording import relay_name, relay_text

_ACTORS: Final = Column("actors", 6, 20)
_SILENT: Final = Column("silent", 6, 36)
_GONE: Final = Column("gone", 6, 28)
_RATE: Final = Column("steps/s", 7, 44)
_TEXT: Final = Column("", 18, 64, "left")
_COLUMNS: Final = (_ACTORS, _SILENT, _GONE, _RATE, _TEXT)
# The heading and one relay.
_MIN_LINES: Final = 2


def relay_lines(relays: tuple[RelayActors, ...], *, n_lines: int | None, width: int) -> list[Text]:
    """Draws a table of relays.

    Args:
        relays: The relays, the worst off first.
        n_lines: The most lines; None: unlimited.
        width: Columns of the terminal, at least 1.

    Returns:
        A heading, and a line for each relay that fits. Empty if there are no relays, or none fits.
    """
    if not relays or (n_lines is not None and n_lines < _MIN_LINES):
        return []
    drawn = relays if n_lines is None else relays[: n_lines - 1]
    n_shown, n_relays = (sum(bool(relay.relay_id) for relay in some) for some in (drawn, relays))
    heading = "relays" if n_shown == n_relays else f"relays, {n_shown} of {n_relays}"
    columns = top_columns.shown(_COLUMNS, width)
    longest = max(len(heading), *(cell_len(relay_name(relay)) for relay in drawn))
    name_width = max(min(longest, width - top_columns.total_width(columns)), 1)
    lines = [_row(heading, name_width, columns, top_columns.titles(columns), "dim")]
    for relay in drawn:
        values = {
            _ACTORS: count(relay.n_actors),
            _SILENT: count(relay.n_silent),
            _GONE: count(relay.n_gone),
            _RATE: short_count(relay.env_steps_per_second),
            _TEXT: relay_text(relay),
        }
        style = "bold red" if relay.is_gone else "yellow" if relay.n_silent or relay.n_gone else ""
        lines.append(_row(relay_name(relay), name_width, columns, values, style))
    return lines


def _row(name: str, name_width: int, columns: tuple[Column, ...], values: dict[Column, str], style: str) -> Text:
    row = Text(name, style)
    row.truncate(name_width, overflow="ellipsis", pad=True)
    top_columns.append(row, columns, values)
    return row
