"""Defines how the parts of a learner note what happens to its actors."""

from typing import Final, Protocol

from rollcast.services.history.history import EventSeverity

# The events to remember, and the characters that are kept of the line that each is.
N_EVENTS: Final = 500
MAX_TEXT_LENGTH: Final = 500


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
    """Does nothing: a `NoteEvent` for learners without a history."""
    del severity, text, who, detail
