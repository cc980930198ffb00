"""Decides when an actor connects again: after which errors, how soon, and how often."""

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.services.errors import (
    LearnerUnreachableError,
    LimitExceededError,
    MissingMessageError,
    NotReadyError,
    RollcastError,
    ThrottledError,
    UnknownActorError,
    UnreadableMessageError,
)

# Errors that another attempt can mend.
_RETRYABLE = (LearnerUnreachableError, NotReadyError, ThrottledError, UnknownActorError)
# After a connection that lasted this long, the backoff starts again from its shortest delay.
_GOOD_CONNECTION_S = 10.0
# A message that cannot be read is taken for damage on its way this often in a row; after that, for the peer's mistake.
_MAX_DAMAGED = 5


class Reconnects:
    """Counts the attempts at one connection, and returns the delay before the next. One thread uses it."""

    def __init__(self) -> None:
        self._delays = backoff_delays()
        self._n_damaged = 0

    def progressed(self) -> None:
        """Notes that a message has come through: the next damaged one is the first again."""
        self._n_damaged = 0

    def delay_after(self, error: RollcastError | None = None, *, lasted_s: float = 0.0) -> float:
        """Returns how long to wait before the next attempt.

        Args:
            error: The error that ended the last connection; None: it ended without one.
            lasted_s: How long that connection had lasted, in seconds.

        Returns:
            Seconds. They grow with each attempt, until a connection has lasted 10 s.

        Raises:
            RollcastError: `error` itself, if another attempt will not help.
        """
        if lasted_s >= _GOOD_CONNECTION_S:
            self._delays, self._n_damaged = backoff_delays(), 0
        if error is not None and not isinstance(error, _RETRYABLE):
            self._n_damaged += 1
            if not _may_be_damage(error) or self._n_damaged > _MAX_DAMAGED:
                raise error
        return next(self._delays)


def may_be_mended_elsewhere(error: RollcastError) -> bool:
    """Returns whether the same learner may be reached by another way: this one has no learner, or has no room."""
    return isinstance(error, (*_RETRYABLE, LimitExceededError)) or _may_be_damage(error)


def _may_be_damage(error: RollcastError) -> bool:
    """Returns True if a flipped bit explains the error: our own messages are never too large, and none is left out."""
    return isinstance(error, UnreadableMessageError | MissingMessageError) or error.limit == "max_message_bytes"
