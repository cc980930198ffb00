"""Limits the rate of an actor's activity reports."""

import time
from collections.abc import Callable

from rollcast.services.errors import LimitExceededError
from rollcast.services.limits.limits import ACTIVITIES_AHEAD, MAX_ACTIVITY_RATE


class ActivityRate:
    """A limit on the activity reports of one stream. An actor that follows the learner's interval never reaches it.

    The learner does not read while it waits for memory, so reports may arrive late and together. The limit therefore
    applies to the number of reports over the stream's whole duration.

    Args:
        interval_s: The interval that the learner has requested; 0: no reports.
        actor_id: The actor's name, for messages.
        clock: Returns monotonic seconds.
    """

    def __init__(self, interval_s: float, *, actor_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._actor_id = actor_id
        self._clock = clock
        self._began = clock()
        self._n_reports = 0

    def count(self) -> bool:
        """Counts a report.

        Returns:
            False: ignore the report, because the learner has requested no reports.

        Raises:
            LimitExceededError: The actor sent too many reports.
        """
        self._n_reports += 1
        open_s = self._clock() - self._began
        asked = open_s / self._interval_s if self._interval_s else 0.0
        if self._n_reports > ACTIVITIES_AHEAD + MAX_ACTIVITY_RATE * asked:
            raise LimitExceededError(
                f"actor {self._actor_id!r} has reported its time {self._n_reports} times in {open_s:.1f} s; expected "
                f"at most {ACTIVITIES_AHEAD} more than twice as often as every {self._interval_s:g} s; send fewer",
                limit="max_activity_rate",
            )
        return bool(self._interval_s)
