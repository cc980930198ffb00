"""Bounds how often an actor may report its time."""

import time
from collections.abc import Callable

from rollcast.services.errors import LimitExceededError
from rollcast.services.limits.limits import ACTIVITIES_AHEAD, MAX_ACTIVITY_RATE


class ActivityRate:
    """The reports that one stream may still send: a limit, which no actor that does as it was asked ever meets.

    Reports may come late and together, for the learner reads nothing while it waits for room: the number over the
    stream's whole time counts.

    Args:
        interval_s: The interval that the learner has asked for; 0: it wants no reports.
        actor_id: The actor's name, for the message of the error.
        clock: Returns monotonic seconds; replaced in tests.
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
            False if the learner has asked for none: it is to be ignored.

        Raises:
            LimitExceededError: There were too many.
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
