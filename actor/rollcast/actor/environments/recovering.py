"""Drops an episode in which the environment raises an exception, and continues with the next episode."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import gymnasium

from rollcast.actor.environments.failures import FailureReport
from rollcast.services.limits.token_buckets import TokenBuckets

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
    """A wrapper that truncates the episode if the environment raises an exception, instead of raising it.

    The failed step returns the previous observation. Its info has `FAILURE_KEY`, so a `RolloutWorker` drops the step.
    The wrapper still raises exceptions of `reset`, and the tenth failure in a row (`MAX_FAILURES_IN_A_ROW`).

    Args:
        env: The environment; `reset` must make it usable again.
    """

    def __init__(self, env: _Environment) -> None:
        super().__init__(env)
        self._last: Any = None
        self._n_failures = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        self._last, info = self.env.reset(seed=seed, options=options)
        return self._last, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - the environment's own
        """Takes a step; truncates the episode if the environment raises an exception or calls `sys.exit`."""
        try:
            result = self.env.step(action)
        except (Exception, SystemExit) as error:
            self._n_failures += 1
            if self._n_failures == MAX_FAILURES_IN_A_ROW:
                raise
            report = FailureReport.of(error, doing="step", env_index=None, env_seed=None)
            return self._last, 0.0, False, True, {FAILURE_KEY: report.to_json().decode()}
        self._n_failures = 0
        self._last = result[0]
        return result


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
