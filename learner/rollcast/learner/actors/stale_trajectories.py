"""What `max_policy_lag` drops: counted, and said in the log."""

import logging
import math
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

# From one warning to the next.
_INTERVAL_S = 60.0


class StaleTrajectories:
    """Says which trajectories are stale, and counts them. Any thread.

    Attributes:
        count: Trajectories that were dropped.

    Args:
        max_policy_lag: Trajectories that are more versions old are stale; None: none is.
        clock: Monotonic seconds.
    """

    def __init__(self, max_policy_lag: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._max_policy_lag = max_policy_lag
        self._clock = clock
        self._lock = threading.Lock()  # guards the counters and times below
        self._n_unreported = 0
        self._next_warning = self._next_info = -math.inf

    def drops(self, n_trajectories: int, *, policy_lag: int) -> bool:
        """Whether trajectories are stale; if so they are counted, and said in the log at most once a minute.

        Args:
            n_trajectories: How many.
            policy_lag: Newest version less the one that played them. Below 0: an actor that outlived its learner sends
                what that one did not take, by a version that this one never cast.
        """
        if policy_lag >= 0 and (self._max_policy_lag is None or policy_lag <= self._max_policy_lag):
            return False
        with self._lock:
            self._note(n_trajectories, policy_lag)
        return True

    def _note(self, n_trajectories: int, policy_lag: int) -> None:
        self.count += n_trajectories
        if policy_lag < 0:
            if self._clock() >= self._next_info:
                self._next_info = self._clock() + _INTERVAL_S
                logger.info("dropping trajectories that were played for an earlier learner")
            return
        self._n_unreported += n_trajectories
        if self._clock() >= self._next_warning:
            self._next_warning = self._clock() + _INTERVAL_S
            logger.warning(
                "dropped %d stale trajectories since the last such warning, %d in all: the latest are %d policy "
                "versions old; expected at most max_policy_lag = %d; raise --max-policy-lag, or run fewer or faster "
                "actors",
                self._n_unreported,
                self.count,
                policy_lag,
                self._max_policy_lag,
            )
            self._n_unreported = 0
