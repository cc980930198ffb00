"""Cuts texts from elsewhere where they are received: what is kept, logged or answered has a bounded length."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

# Characters of a name that a message repeats, and the names of a list.
_QUOTED_LENGTH: Final = 160
_N_QUOTED: Final = 16
_CUT: Final = "…"


def shortened(text: str, length: int) -> str:
    """Returns a text of at most `length` characters: its beginning, if it is longer."""
    return text if len(text) <= length else text[: length - 1] + _CUT


def shortened_traceback(text: str, length: int) -> str:
    """Returns a text of at most `length` characters: its end, which says most in a traceback, if it is longer."""
    return text if len(text) <= length else _CUT + text[1 - length :]


def quoted(name: str) -> str:
    """Returns a name from elsewhere for a message: in quotes, at most 160 characters of it."""
    return repr(shortened(name, _QUOTED_LENGTH))


def quoted_names(names: Iterable[str]) -> str:
    """Returns a list of names from elsewhere for a message: at most 16, each as `quoted` returns it."""
    return f"[{', '.join(map(quoted, islice(names, _N_QUOTED)))}]"
