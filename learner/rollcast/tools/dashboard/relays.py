"""The relays of the page: the number and the state of each relay's actors."""

from nicegui import ui

from rollcast.tools.dashboard.figures import RELAY_COLUMNS, RelayRow, relay_rows
from rollcast.tools.dashboard.text import Text
from rollcast.tools.watching.run_view import RunView


class _Row:
    """The place of one relay. Make it inside the table's body."""

    def __init__(self) -> None:
        with ui.element("tr") as self._root:
            self._name = Text(tag="th", classes="relay-name").props("scope=row")
            self._cells = [Text(tag="td", classes="number") for _ in RELAY_COLUMNS]
            self._doing = Text(tag="td", classes="relay-doing")
        self._shown: RelayRow | None = None

    def show(self, row: RelayRow | None) -> None:
        """Shows a relay; None: hides its place."""
        if row == self._shown:
            return
        self._shown = row
        self._root.set_visibility(row is not None)
        if row is None:
            return
        self._root.classes(add="bad" if row.is_bad else "", remove="" if row.is_bad else "bad")
        self._name.show(row.name, row.name)
        for cell, text in zip(self._cells, row.cells, strict=True):
            cell.show(text)
        self._doing.show(row.doing)


class Relays:
    """The table of relays of one page; empty in a run without relays."""

    def __init__(self) -> None:
        with ui.element("section").classes("card relays").props("data-relays") as self._card:
            Text("relays, the worst off first", tag="h2")
            with ui.element("table"):
                with ui.element("thead"), ui.element("tr"):
                    Text(tag="th", classes="relay-name").props("scope=col")
                    for name, title in RELAY_COLUMNS:
                        Text(tag="th", classes="number").props("scope=col").show(name, title)
                    Text(tag="th", classes="relay-doing").props("scope=col")
                self._body = ui.element("tbody")
        self._rows: list[_Row] = []
        self._card.set_visibility(False)

    def show(self, view: RunView) -> None:
        """Shows the relays of a run; sends only changes."""
        shown = relay_rows(view)
        self._card.set_visibility(bool(shown))
        with self._body:
            self._rows.extend(_Row() for _ in range(len(shown) - len(self._rows)))
        for index, row in enumerate(self._rows):
            row.show(shown[index] if index < len(shown) else None)
