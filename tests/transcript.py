"""Sessions at terminals as pages show them: files to save, commands, and what they print."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# A line of a page that stands for any number of lines.
ANY_LINES = "..."

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"(\w*)\$ (.*)")
_HEREDOC = re.compile(r"<<\s*'?(\w+)'?")
_DIFFERS = re.compile(r"numbers\s+differ")
# The rest of a line that is left out, bars of progress, and numbers as programs print them, dates and times included.
# A number is no part of a name, as in `a2c`, but a policy version is one: `v263`.
_VARIES = re.compile(
    r"(?P<any>(?<!\.)\.{3}(?!\.))|(?P<bar>[#.]{4,})|(?P<gap>\s+)"
    r"|(?P<number>(?:(?<![A-Za-z_\d])|(?<=\sv))[-+]?\d[\d,.:]*(?:-\d[\d,.:]*)*)"
)
_MATCHES = {"any": ".*", "bar": "[#.]{4,}", "number": r"[-+]?\d[\d,.:]*(?:-\d[\d,.:]*)*", "gap": r"\s+"}


@dataclass(frozen=True, slots=True)
class File:
    """A program that the reader saves under a name, which its first line has as a comment."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that the reader types into a terminal, with the output.

    Attributes:
        terminal: The terminal's name, which stands before its `$`; empty: the only one.
        typed: A command, of several lines perhaps, or a key, as `^C`.
        shown: The lines of output.
        differs: True if the page says that the reader's numbers differ.
    """

    terminal: str
    typed: str
    shown: tuple[str, ...]
    differs: bool

    @property
    def is_key(self) -> bool:
        """True if it is a key, pressed while a command runs."""
        return re.fullmatch(r"\^[A-Z\\]", self.typed) is not None


def session(page: str) -> list[File | Entry]:
    """Returns what a page has its reader do, in this order.

    Blocks of `python` are files, blocks of `console` are typed; others are neither.
    """
    done: list[File | Entry] = []
    end = 0
    for fence in _FENCE.finditer(page):
        language, body = fence.groups()
        if language == "python":
            name = re.match(r"# (\S+\.py)\n", body)
            assert name, f"its first line has the name to save it under:\n{body}"
            done.append(File(name[1], body))
        elif language == "console":
            done += _entries(body, differs=bool(_DIFFERS.search(page[end : fence.start()])))
        end = fence.end()
    return done


def _entries(body: str, *, differs: bool) -> Iterator[Entry]:
    lines = body.splitlines()
    assert _PROMPT.match(body), f"a block begins with what is typed:\n{body}"
    while lines:
        terminal, typed = _PROMPT.fullmatch(lines.pop(0)).groups()
        heredoc = _HEREDOC.search(typed)
        while typed.endswith(" \\") or (heredoc and typed.rpartition("\n")[2] != heredoc[1]):
            typed += f"\n{lines.pop(0)}"
        shown = []
        while lines and not _PROMPT.fullmatch(lines[0]):
            shown.append(lines.pop(0))
        yield Entry(terminal, typed, tuple(shown), differs)


def pattern_of(lines: tuple[str, ...], *, differs: bool) -> str:
    """Returns the regular expression of lines, each with its end.

    Args:
        lines: The lines as a page shows them. `...` stands for any number of lines.
        differs: Any number stands for any other, as does a bar of progress; gaps are as wide as they need to be.
    """
    return "".join(r"(?:.*\n)*?" if line == ANY_LINES else f"{_line(line, differs=differs)}\n" for line in lines)


def _line(line: str, *, differs: bool) -> str:
    if not differs:
        return re.escape(line.rstrip())
    pattern, end = "", 0
    for varies in _VARIES.finditer(line.rstrip()):
        pattern += re.escape(line[end : varies.start()])
        pattern += _MATCHES[str(varies.lastgroup)]
        end = varies.end()
    return pattern + re.escape(line.rstrip()[end:])
