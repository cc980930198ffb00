"""When a lost connection is tried again: after which errors, how soon, and how often."""

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.services.errors import (
    LearnerUnreachableError,
    MissingMessageError,
    NotReadyError,
    RollcastError,
    ThrottledError,
    UnknownActorError,
    UnreadableMessageError,
)

# Errors after which asking again helps.
_RETRYABLE = (LearnerUnreachableError, NotReadyError, ThrottledError, UnknownActorError)
# A connection that held this long was a good one: the next attempt starts from the shortest backoff again.
_GOOD_CONNECTION_S = 10.0
# How often in a row it is believed that a message was damaged on its way, and not meant so.
_MAX_DAMAGED = 5


class Reconnects:
    """The attempts at one connection, in one thread."""

    def __init__(self) -> None:
        self._delays = backoff_delays()
        self._n_damaged = 0

    def progressed(self) -> None:
        """What the connection is for has come through."""
        self._n_damaged = 0

    def delay_after(self, error: RollcastError | None = None, *, lasted_s: float = 0.0) -> float:
        """How long to wait before the next attempt.

        Args:
            error: What ended the last one; None: nothing.
            lasted_s: How long it had lasted, in seconds.

        Returns:
            Seconds, longer from one attempt to the next, until one has lasted 10 s.

        Raises:
            RollcastError: `error`, where trying again will not help.
        """
        if lasted_s >= _GOOD_CONNECTION_S:
            self._delays, self._n_damaged = backoff_delays(), 0
        if error is not None and not isinstance(error, _RETRYABLE):
            self._n_damaged += 1
            if not _may_be_damage(error) or self._n_damaged > _MAX_DAMAGED:
                raise error
        return next(self._delays)


def _may_be_damage(error: RollcastError) -> bool:
    """Whether a bit that was flipped on the way explains it: none of our messages is too large, or left out."""
    return isinstance(error, UnreadableMessageError | MissingMessageError) or error.limit == "max_message_bytes"
