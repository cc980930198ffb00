"""Drops trajectories that are older than `max_policy_lag` allows, counts them, and logs a warning."""

import logging
import math
import threading
import time
from collections.abc import Callable

from rollcast.learner.queueing.destination import RolloutDestination
from rollcast.services.rollouts.rollouts import Rollout

logger = logging.getLogger(__name__)

# The least time between two warnings.
_INTERVAL_S = 60.0


class StaleTrajectories:
    """Decides which trajectories are stale, and counts them. Thread-safe.

    Attributes:
        count: The number of dropped trajectories.

    Args:
        max_policy_lag: The age limit in versions; older trajectories are stale. None: no limit.
        clock: Returns monotonic seconds.
    """

    def __init__(self, max_policy_lag: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._max_policy_lag = max_policy_lag
        self._clock = clock
        self._lock = threading.Lock()  # guards the counters and times below
        self._n_unreported = 0
        # In rounds: trajectories of first rollouts, each of which may have made one of another actor too old.
        self._n_displaced = 0
        self._next_warning = self._next_info = -math.inf

    def is_stale(self, policy_lag: int) -> bool:
        """Returns whether trajectories are stale.

        Args:
            policy_lag: The newest version minus the version that played them. Negative if an actor sends a rollout by a
                version of an earlier learner; such trajectories are stale, too.
        """
        return policy_lag < 0 or (self._max_policy_lag is not None and policy_lag > self._max_policy_lag)

    def drops(self, n_trajectories: int, *, policy_lag: int, is_first: bool = False) -> bool:
        """Returns whether trajectories are stale, and counts stale trajectories; see `is_stale` and `drop`."""
        is_stale = self.is_stale(policy_lag)
        if is_stale:
            self.drop(n_trajectories, policy_lag=policy_lag, is_first=is_first)
        elif is_first and self._max_policy_lag == 0:
            with self._lock:
                self._n_displaced += n_trajectories
        return is_stale

    def drop(self, n_trajectories: int, *, policy_lag: int, is_first: bool = False) -> None:
        """Counts stale trajectories, and warns at most once a minute.

        In rounds, an actor's first rollout takes no place from others. So it is no fault if it is stale, or if it comes
        in time and a rollout of another actor is therefore too old; see `rollcast.learner.serving.round_places`.

        Args:
            n_trajectories: Their number.
            policy_lag: As in `is_stale`.
            is_first: True for an actor's first rollout.
        """
        with self._lock:
            self.count += n_trajectories
            if is_first and self._max_policy_lag == 0:
                return
            n_displaced = min(self._n_displaced, n_trajectories)
            self._n_displaced -= n_displaced
            if n_trajectories > n_displaced:
                self._note(n_trajectories - n_displaced, policy_lag)

    def _note(self, n_trajectories: int, policy_lag: int) -> None:
        # The newest version may have changed since they were found to be stale.
        if policy_lag < 0 or self._max_policy_lag is None:
            if self._clock() >= self._next_info:
                self._next_info = self._clock() + _INTERVAL_S
                logger.info("dropping trajectories that were played for an earlier learner")
            return
        self._n_unreported += n_trajectories
        if self._clock() >= self._next_warning:
            self._next_warning = self._clock() + _INTERVAL_S
            logger.warning(
                "dropped %d stale trajectories since the last such warning, %d in all: the latest are %d policy "
                "versions old; expected at most max_policy_lag = %d; %s",
                self._n_unreported,
                self.count,
                policy_lag,
                self._max_policy_lag,
                "raise --max-policy-lag, or run fewer or faster actors"
                if self._max_policy_lag
                else "run actors that are equally fast, or an algorithm that accepts older ones, such as appo",
            )
            self._n_unreported = 0


class FreshDestination:
    """A `RolloutDestination` that drops stale rollouts, and passes fresh rollouts on to another destination.

    Args:
        destination: Takes the fresh rollouts.
        is_stale: Returns whether a rollout is stale, and if so counts the given number of trajectories.
    """

    def __init__(self, destination: RolloutDestination, is_stale: Callable[[Rollout, int], bool]) -> None:
        self._destination = destination
        self._is_stale = is_stale

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], n_reserved: int = 0) -> bool:
        """See `RolloutDestination.put`; a stale rollout counts as taken."""
        if self._is_stale(rollout, rollout.n_envs):
            if n_reserved:
                self._destination.release(n_reserved)
            return True
        return self._destination.put(rollout, is_active=is_active, n_reserved=n_reserved)

    def reserve(self, n_trajectories: int) -> bool:
        """See `RolloutDestination.reserve`."""
        return self._destination.reserve(n_trajectories)

    def release(self, n_trajectories: int) -> None:
        """See `RolloutDestination.release`."""
        self._destination.release(n_trajectories)

    def close(self) -> None:
        """See `RolloutDestination.close`."""
        self._destination.close()
