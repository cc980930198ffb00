"""Limits the length of received texts, before they are stored, logged or sent."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

# Characters of a name that a message repeats, and the names of a list.
_QUOTED_LENGTH: Final = 160
_N_QUOTED: Final = 16
_CUT: Final = "…"


def shortened(text: str, length: int) -> str:
    """Returns at most the first `length` characters of a text."""
    return text if len(text) <= length else text[: length - 1] + _CUT


def shortened_traceback(text: str, length: int) -> str:
    """Returns at most the last `length` characters of a traceback, which are the most informative ones."""
    return text if len(text) <= length else _CUT + text[1 - length :]


def quoted(name: str) -> str:
    """Returns a received name for a message: in quotes, and cut to 160 characters."""
    return repr(shortened(name, _QUOTED_LENGTH))


def quoted_names(names: Iterable[str]) -> str:
    """Returns a list of received names for a message: at most 16, each as from `quoted`."""
    return f"[{', '.join(map(quoted, islice(names, _N_QUOTED)))}]"
