"""Decides which address an actor or a relay tries next, and when: a state machine without threads and clocks."""

from collections.abc import Callable, Sequence
from typing import Final

from rollcast.actor.connection.reconnects import Reconnects, may_be_mended_elsewhere
from rollcast.services.errors import LearnerUnreachableError, NotReadyError, RollcastError

# A restarting learner is ready within this time, with its checkpoint and its relays' connections.
_PATIENCE_S: Final = 60.0


class JoinAttempts:
    """The attempts to reach a learner at one of several addresses. Only one thread may use the attempts.

    Each round tries the addresses in order. An address that answers but is not ready ends the round. The actor tries
    this address again after a delay, for at most a minute or half of the timeout. A relay is not ready while its
    learner restarts. Without the delay, a relay's actors would all connect to the learner directly if the learner is
    ready before its relays.

    All times are monotonic, in seconds.

    Attributes:
        rank_address: The address of this actor's rank, which is tried first; empty: none.
        n_rounds: The number of rounds that have ended since `begin`, or since a learner was lost.

    Args:
        addresses: The addresses, at least one.
        moves_on: Returns whether to try the next address after an error.
    """

    def __init__(
        self, addresses: Sequence[str], *, moves_on: Callable[[RollcastError], bool] = may_be_mended_elsewhere
    ) -> None:
        self.rank_address = ""
        self.n_rounds = 0
        self._addresses = tuple(addresses)
        self._moves_on = moves_on
        self._next = 0
        # The time since which each address has answered that it is not ready.
        self._not_ready_since: dict[str, float] = {}
        self._reconnects = Reconnects()
        self._timeout_s = self._ends_at = 0.0

    @property
    def address(self) -> str:
        """The address to try next."""
        return self._tried()[self._next]

    def begin(self, now: float, timeout_s: float) -> None:
        """Starts the search for a learner.

        Args:
            now: The time.
            timeout_s: The longest search for the learner.
        """
        self._reconnects = Reconnects()
        self._look(now, timeout_s)

    def failed(self, error: RollcastError, now: float) -> float:
        """Notes that the attempt at the address failed.

        Args:
            error: The reason.
            now: The time.

        Returns:
            The seconds to wait before the next attempt; 0: try the next address of this round at once.

        Raises:
            LearnerUnreachableError: The timeout has passed.
            RollcastError: `error` itself, if another attempt will not help.
        """
        tried = self._tried()
        is_last = self._next == len(tried) - 1
        if not is_last and self._moves_on(error) and not self._is_waited_for(tried[self._next], error, now):
            self._next += 1
            return 0.0
        return self._end_round(error, now, lasted_s=0.0)

    def reached(self) -> None:
        """Notes that a learner answered, and resets the waiting times of all addresses."""
        self._not_ready_since.clear()
        self._next = 0

    def lost(self, error: RollcastError, now: float, *, lasted_s: float, timeout_s: float) -> float:
        """Notes that the connection to the learner was lost, and starts a new search for the learner.

        Args:
            error: The reason.
            now: The time.
            lasted_s: The duration of the connection. A long connection resets the delays.
            timeout_s: The longest search for the learner.

        Returns:
            The seconds to wait before the next attempt.

        Raises:
            RollcastError: See `failed`.
        """
        self.reached()
        self._look(now, timeout_s)
        return self._end_round(error, now, lasted_s=lasted_s)

    def _tried(self) -> tuple[str, ...]:
        return (self.rank_address, *self._addresses) if self.rank_address else self._addresses

    def _look(self, now: float, timeout_s: float) -> None:
        self._next = self.n_rounds = 0
        self._timeout_s, self._ends_at = timeout_s, now + timeout_s

    def _is_waited_for(self, address: str, error: RollcastError, now: float) -> bool:
        """Returns whether to try the same address again instead of the next one."""
        if not isinstance(error, NotReadyError):
            self._not_ready_since.pop(address, None)
            return False
        return now - self._not_ready_since.setdefault(address, now) < min(self._timeout_s / 2, _PATIENCE_S)

    def _end_round(self, error: RollcastError, now: float, *, lasted_s: float) -> float:
        self._next = 0
        self.n_rounds += 1
        delay_s = self._reconnects.delay_after(error, lasted_s=lasted_s)
        if now + delay_s > self._ends_at:
            raise LearnerUnreachableError(
                f"no learner at {', '.join(self._addresses)} for {self._timeout_s:.0f} s ({self.n_rounds} attempts): "
                f"{error}"
            ) from error
        return delay_s
