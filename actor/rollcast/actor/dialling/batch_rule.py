"""Decides when a batch of waiting environments acts, and when their rollout ends: rules without clocks."""

import math
from dataclasses import dataclass
from typing import Final

# The longest wait of a request for others, in seconds. A slower pass, such as the first one, is not representative.
LONGEST_WAIT_S: Final = 0.05
# While the server reads requests without a break, a batch may close this long after its oldest request, in seconds.
LONGEST_CROWD_S: Final = 0.002
# Once an environment waits for the end of a rollout, the others have this part of the rollout's duration to catch up.
PATIENCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class BatchRule:
    """Closes a batch when all live environments wait, the batch is full, or the oldest request reaches its limit.

    A request waits for other requests at most as long as the last forward pass took. A request that had just missed a
    pass would wait about as long. So a slow environment never delays other environments. While the
    server reads further requests without a break, the limit is at least 2 ms.

    Attributes:
        max_size: The largest number of environments in a batch; None: no limit.
    """

    max_size: int | None = None

    def is_full(self, n_asking: int, n_live: int) -> bool:
        """Returns whether a batch closes because of its size.

        Args:
            n_asking: The number of environments that wait for actions.
            n_live: The number of environments that wait or may soon wait.
        """
        return 0 < n_asking >= min(n_live, self.max_size or n_live)

    def deadline(self, oldest: float | None, forward_s: float) -> float:
        """Returns the time at which a batch of any size closes; infinity if no environment waits.

        Args:
            oldest: The time of the oldest request; None: no request.
            forward_s: The seconds that the last forward pass took.
        """
        return math.inf if oldest is None else oldest + min(forward_s, LONGEST_WAIT_S)

    def crowd_deadline(self, oldest: float | None) -> float:
        """Returns the time until which a batch may wait while the server reads further requests without a break.

        Args:
            oldest: The time of the oldest request; None: no request.
        """
        return -math.inf if oldest is None else oldest + LONGEST_CROWD_S


@dataclass(slots=True)
class RolloutRule:
    """Closes a rollout when no live environment can continue, or the longest wait reaches its limit.

    The limit is a tenth of the rollout's duration, so no environment waits long for the slowest environment. The
    rollout keeps the rows of slower environments.

    Attributes:
        began: The time of the first actions; None: no actions yet.
        full_since: The time at which the first environment began to wait for the end; None: no environment waits.
    """

    began: float | None = None
    full_since: float | None = None

    def acted(self, now: float) -> None:
        """Notes that actions were sent."""
        if self.began is None:
            self.began = now

    def look(self, n_full: int, now: float) -> None:
        """Notes the number of environments that have all rows, or no space for another row."""
        if n_full == 0:
            self.full_since = None
        elif self.full_since is None:
            self.full_since = now

    def closes_at(self, n_live: int, n_full: int) -> float:
        """Returns the time at which the rollout closes if no environment changes its state. Minus infinity means now.

        Args:
            n_live: The number of environments that play.
            n_full: The number of these environments that have all rows, or no space for another row.
        """
        if self.full_since is None:
            return math.inf
        if n_full >= n_live:
            return -math.inf
        began = self.full_since if self.began is None else self.began
        return self.full_since + PATIENCE * (self.full_since - began)
