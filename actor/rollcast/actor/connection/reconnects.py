"""Decides when an actor connects again: after which errors, how soon, and how often."""

import time
from collections.abc import Callable

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
# A learner that starts again is back within this time, with its checkpoint and its relays' connections.
_PATIENCE_S = 60.0


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


class Patience:
    """Decides when an address that answers, but is not ready, is given up for the next of a list. For one thread.

    A relay whose learner starts again answers so. If its actors went on at once, all would be connected to the learner
    directly when that is back a moment before its relays are.

    Args:
        clock: Returns monotonic seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def waits_for(self, address: str, error: RollcastError, *, longest_s: float = _PATIENCE_S) -> bool:
        """Returns whether to try an address again rather than the next one.

        Args:
            address: The address.
            error: The reason why it could not be used this time.
            longest_s: The time to wait for it, in seconds, if that is less than a minute.
        """
        if not isinstance(error, NotReadyError):
            self._since.pop(address, None)
            return False
        return self._clock() - self._since.setdefault(address, self._clock()) < min(longest_s, _PATIENCE_S)

    def forget(self) -> None:
        """Notes that an address could be used: the next wait is the first again."""
        self._since.clear()


def may_be_mended_elsewhere(error: RollcastError) -> bool:
    """Returns whether the same learner may be reached by another way: this one has no learner, or has no room."""
    return isinstance(error, (*_RETRYABLE, LimitExceededError)) or _may_be_damage(error)


def _may_be_damage(error: RollcastError) -> bool:
    """Returns True if a flipped bit explains the error: our own messages are never too large, and none is left out."""
    return isinstance(error, UnreadableMessageError | MissingMessageError) or error.limit == "max_message_bytes"
