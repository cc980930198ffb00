"""Drops an episode in which the environment raises or returns a wrong value, and continues with the next episode."""

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import gymnasium

from rollcast.actor.environments.failures import FailureReport
from rollcast.actor.environments.returned_values import (
    InvalidValueError,
    checked_flag,
    checked_leaves,
    checked_reset,
    checked_reward,
    checked_step,
)
from rollcast.actor.policies.action_masks import ACTION_MASK, ActionMask, action_mask_of
from rollcast.services.limits.token_buckets import TokenBuckets
from rollcast.services.spaces.spaces import SubstepSpaces, space_leaves

logger = logging.getLogger(__name__)

# Key of the failure's report, as JSON, in the info of the step that raised.
FAILURE_KEY: Final = "rollcast/failure"

# An environment that raises this often without a good step between is broken.
MAX_FAILURES_IN_A_ROW: Final = 10

# Dropped episodes that are logged at once, and the seconds between two of them after that.
_LINES_AT_ONCE: Final = 5
_LINE_EVERY_S: Final = 60.0

_Environment = gymnasium.Env[Any, Any]


class RecoveringEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that truncates the episode if `step` raises an exception or returns a wrong value.

    The failed step returns the first observation of its episode. Its info has `FAILURE_KEY`, so a `RolloutWorker` drops
    the step. The wrapper still raises exceptions of `reset`, and the tenth failure in a row (`MAX_FAILURES_IN_A_ROW`).

    Args:
        env: The environment; `reset` must make it usable again.
    """

    def __init__(self, env: _Environment) -> None:
        super().__init__(env)
        self._leaves: Mapping[str, gymnasium.Space[Any]] = {}
        self._mask: ActionMask | None = None
        self._first: Any = None
        self._n_failures = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        if not self._leaves:
            # Not earlier: the vector refuses spaces that are not supported.
            spaces = SubstepSpaces(observation=self.observation_space, action=self.action_space)
            self._leaves, self._mask = space_leaves(spaces.observation), action_mask_of(spaces)
        observation, info = checked_reset(self.env.reset(seed=seed, options=options))
        # A copy, because environments may reuse their buffer, and a failed step may leave a wrong value there.
        self._first = copy.deepcopy(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - the environment's own
        """Takes a step; truncates the episode if the environment raises, calls `sys.exit`, or returns a wrong value."""
        try:
            result = self._checked(self.env.step(action))
        except (Exception, SystemExit) as error:
            self._n_failures += 1
            if self._n_failures == MAX_FAILURES_IN_A_ROW:
                raise
            report = FailureReport.of(error, doing="step", env_index=None, env_seed=None)
            return self._first, 0.0, False, True, {FAILURE_KEY: report.to_json().decode()}
        self._n_failures = 0
        return result

    def _checked(self, result: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - any value
        """Returns the result of a step, if training accepts all of it."""
        observation, reward, terminated, truncated, info = checked_step(result)
        leaves = checked_leaves(self.observation_space, self._leaves, observation, "the observation")
        terminated, truncated = checked_flag(terminated, "terminated"), checked_flag(truncated, "truncated")
        if self._mask is not None and not (terminated or truncated) and any(self._mask.allows_no_action(leaves)):
            raise InvalidValueError(
                f"the {ACTION_MASK!r} allows no action: {leaves[ACTION_MASK].tolist()}; expected at least one allowed "
                "action until the episode has ended; end the episode, or allow an action without an effect"
            )
        return observation, checked_reward(reward), terminated, truncated, info


def failures_in(infos: dict[str, Any]) -> Iterator[tuple[int, FailureReport]]:
    """Yields the failures in a step of a vector environment that resets in the same step.

    Args:
        infos: The step's infos, merged by gymnasium.

    Yields:
        The environment's index, and the report of its failure.
    """
    told = infos.get("final_info")
    if told is not None and FAILURE_KEY in told:
        for index in told[f"_{FAILURE_KEY}"].nonzero()[0].tolist():
            yield index, FailureReport.from_json(told[FAILURE_KEY][index].encode())


class DroppedEpisodesLog:
    """Logs the first few dropped episodes, then one episode per minute and the number of unlogged episodes.

    Thread-safe.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._told = TokenBuckets(
            1 / _LINE_EVERY_S, 1 / _LINE_EVERY_S, burst_s=_LINES_AT_ONCE * _LINE_EVERY_S, clock=clock
        )
        self._lock = threading.Lock()  # guards the number below
        self._n_untold = 0

    def note(self, report: FailureReport, *, env_index: int, env_seed: int | None) -> None:
        """Notes that an episode of an environment was dropped because of a failure."""
        with self._lock:
            if self._told.take("") is not None:
                self._n_untold += 1
                return
            n_untold, self._n_untold = self._n_untold, 0
        logger.warning(
            "environment %d (seed %s) raised %s in %s(): %s; the episode is dropped, and the environment reset%s\n%s",
            env_index,
            env_seed,
            report.exception_type,
            report.doing,
            report.exception_message,
            f"; {n_untold:,} others since the last such line" if n_untold else "",
            report.exception_traceback,
        )
