"""Decides when an actor reconnects: after which errors, how soon, and how often."""

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

# Errors after which another attempt may succeed.
_RETRYABLE = (LearnerUnreachableError, NotReadyError, ThrottledError, UnknownActorError)
# After a connection that lasted this long, the backoff starts again from its shortest delay.
GOOD_CONNECTION_S = 10.0
# This many unreadable messages in a row count as damage in transit; further ones count as the peer's mistake.
_MAX_DAMAGED = 5


class Reconnects:
    """Counts the attempts at one connection, and returns the delay before the next attempt. For one thread."""

    def __init__(self) -> None:
        self._delays = backoff_delays()
        self._n_damaged = 0

    def progressed(self) -> None:
        """Notes that a message has arrived, and resets the count of damaged messages."""
        self._n_damaged = 0

    def delay_after(self, error: RollcastError | None = None, *, lasted_s: float = 0.0) -> float:
        """Returns the delay before the next attempt.

        Args:
            error: The error that ended the last connection; None: it ended without an error.
            lasted_s: The duration of that connection, in seconds.

        Returns:
            The delay in seconds. It increases with each attempt, and a connection that lasted 10 s resets it.

        Raises:
            RollcastError: `error` itself, if another attempt will not help.
        """
        if lasted_s >= GOOD_CONNECTION_S:
            self._delays, self._n_damaged = backoff_delays(), 0
        if error is not None and not isinstance(error, _RETRYABLE):
            self._n_damaged += 1
            if not _may_be_damage(error) or self._n_damaged > _MAX_DAMAGED:
                raise error
        return next(self._delays)


def may_be_mended_elsewhere(error: RollcastError) -> bool:
    """Returns whether another address may succeed: the error is about this address, not about the actor."""
    return isinstance(error, (*_RETRYABLE, LimitExceededError)) or _may_be_damage(error)


def _may_be_damage(error: RollcastError) -> bool:
    """Returns True if a flipped bit explains the error: rollcast sends no message that is too large, and omits none."""
    return isinstance(error, UnreadableMessageError | MissingMessageError) or error.limit == "max_message_bytes"
