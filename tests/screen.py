"""The text on a terminal: what programs wrote, after their moves of the cursor."""

import re

# Bash prints them as prompts: the first asks for a command, the second for the rest of one.
ASKS, ASKS_FOR_MORE = "\x1e", "\x1d"

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>]|([\x00-\x1f])|([^\x00-\x1f\x1b]+)")
# A sequence that is not whole yet.
_CUT = re.compile(r"\x1b(?:\[[0-9;?]*)?$")


class Screen:
    """Lines of text that a terminal shows, those that have left its window included. Long lines are not wrapped.

    It knows what rich writes: colours, which it drops, moves up and to the beginning, erasing, the other screen.

    Attributes:
        lines: The lines, the last is the one being written.
        asked: How often bash has asked for a command.
        asked_for_more: How often it has asked for the rest of one.
    """

    def __init__(self) -> None:
        self.lines = [""]
        self.asked = self.asked_for_more = 0
        self._row = self._column = 0
        self._rest = ""
        self._main: list[str] | None = None

    def feed(self, text: str) -> None:
        """Takes what programs wrote, cut anywhere."""
        text = self._rest + text
        cut = _CUT.search(text)
        self._rest = cut[0] if cut else ""
        for parameters, action, control, shown in _TOKEN.findall(text.removesuffix(self._rest)):
            if action:
                self._act(action, parameters)
            elif shown:
                self._write(shown)
            elif control:
                self._control(control)

    def clear(self) -> None:
        """Forgets all lines; the next begins at the left."""
        self.lines, self._row, self._column = [""], 0, 0

    def _write(self, shown: str) -> None:
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + shown + line[self._column + len(shown) :]
        self._column += len(shown)

    def _control(self, control: str) -> None:
        if control == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
        elif control == "\r":
            self._column = 0
        elif control == "\t":
            self._column += 8 - self._column % 8
        elif control == ASKS:
            self.asked += 1
        elif control == ASKS_FOR_MORE:
            self.asked_for_more += 1

    def _act(self, action: str, parameters: str) -> None:
        if action == "A":
            self._row = max(self._row - int(parameters or 1), 0)
        elif action == "H":
            self._row = self._column = 0
        elif action == "K":
            line = self.lines[self._row]
            self.lines[self._row] = "" if parameters == "2" else line[: self._column]
        elif action == "J":
            del self.lines[self._row + 1 :]
            self.lines[self._row] = self.lines[self._row][: self._column]
            if parameters == "2":
                self.clear()
        elif parameters == "?1049":
            if action == "h":
                self._main = self.lines
                self.clear()
            elif self._main is not None:
                self.lines, self._main = self._main, None
                self._row, self._column = len(self.lines) - 1, 0
