"""Defines how the parts of a learner note what happens to its actors."""

from typing import Final, Protocol

from rollcast.services.history.history import EventSeverity

# The events to remember, and the characters of each that are kept: texts may come from actors.
N_EVENTS: Final = 500
MAX_TEXT_LENGTH: Final = 500
MAX_DETAIL_LENGTH: Final = 8000


class NoteEvent(Protocol):
    """Notes that something has happened. Any thread may call."""

    def __call__(self, severity: EventSeverity, text: str, *, who: str = "", detail: str = "") -> None:
        """Notes an event of this moment.

        Args:
            severity: How much it matters.
            text: What has happened, in a line.
            who: The actor or evaluator that it is about; empty: the learner.
            detail: A traceback, or another text of several lines.
        """


def forget_event(severity: EventSeverity, text: str, *, who: str = "", detail: str = "") -> None:
    """Does nothing: a `NoteEvent` for learners whose history nobody keeps."""
    del severity, text, who, detail


def shortened(text: str, length: int) -> str:
    """Returns a text of at most `length` characters: its end, which says most in a traceback, if it is longer."""
    return text if len(text) <= length else "…" + text[1 - length :]
