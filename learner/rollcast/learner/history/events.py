"""Defines the interface with which the parts of a learner record events of actors."""

from typing import Final, Protocol

from rollcast.services.history.history import EventSeverity

# The largest numbers of stored events, and of characters in each line.
N_EVENTS: Final = 500
MAX_TEXT_LENGTH: Final = 500


class NoteEvent(Protocol):
    """Notes an event. Thread-safe."""

    def __call__(self, severity: EventSeverity, text: str, *, who: str = "", detail: str = "") -> None:
        """Notes an event at the present moment.

        Args:
            severity: The severity of the event.
            text: A description in one line.
            who: The actor or evaluator of the event; empty: the learner.
            detail: A traceback, or another text of several lines.
        """


def forget_event(severity: EventSeverity, text: str, *, who: str = "", detail: str = "") -> None:
    """Does nothing: a `NoteEvent` for learners without a history."""
    del severity, text, who, detail
