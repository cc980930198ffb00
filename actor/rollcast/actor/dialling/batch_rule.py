"""Decides when environments that wait for actions act together, and when their rollout ends: rules without clocks."""

import math
from dataclasses import dataclass
from typing import Final

# The longest wait of a request for company, in seconds: a pass that took longer, such as the first, is no guide.
LONGEST_WAIT_S: Final = 0.05
# Once an environment has to wait for the end of a rollout, the others have this part of the rollout's time to catch up.
PATIENCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class BatchRule:
    """A batch closes by the first of: all live environments wait; a number; a time since the oldest request.

    That time is the time that the last forward pass took. So a request waits for company about as long as it would have
    waited behind a pass that had begun just before it, and a slow environment never holds up the others.

    Attributes:
        max_size: Environments that act at once, at most; None: any number.
    """

    max_size: int | None = None

    def is_full(self, n_asking: int, n_live: int) -> bool:
        """Returns whether a batch closes by its size.

        Args:
            n_asking: Environments that wait for actions.
            n_live: Environments that wait or may do so soon.
        """
        return 0 < n_asking >= min(n_live, self.max_size or n_live)

    def deadline(self, oldest: float | None, forward_s: float) -> float:
        """Returns the time at which a batch closes whatever its size; infinity if no environment waits.

        Args:
            oldest: The time of the oldest request; None: there is none.
            forward_s: The seconds that the last forward pass took.
        """
        return math.inf if oldest is None else oldest + min(forward_s, LONGEST_WAIT_S)


@dataclass(slots=True)
class RolloutRule:
    """A rollout closes when no live environment can continue, or when some could not for a tenth of its time.

    So no environment waits for the slowest for long. An environment with fewer rows keeps those that it has.

    Attributes:
        began: The time of the first actions; None: there were none.
        full_since: The time since which an environment has had to wait for the end; None: none has.
    """

    began: float | None = None
    full_since: float | None = None

    def acted(self, now: float) -> None:
        """Notes that actions were sent."""
        if self.began is None:
            self.began = now

    def look(self, n_full: int, now: float) -> None:
        """Notes how many environments have to wait for the end: they have all rows, or no room for another."""
        if n_full == 0:
            self.full_since = None
        elif self.full_since is None:
            self.full_since = now

    def closes_at(self, n_live: int, n_full: int) -> float:
        """Returns the time at which the rollout closes, as things are; minus infinity: it closes now.

        Args:
            n_live: Environments that play.
            n_full: Those of them that have to wait for the end.
        """
        if self.full_since is None:
            return math.inf
        if n_full >= n_live:
            return -math.inf
        began = self.full_since if self.began is None else self.began
        return self.full_since + PATIENCE * (self.full_since - began)
