"""Finds out when an actor's reports of its time were made, on the learner's clock."""

from typing import Final, NamedTuple

from rollcast.services.joining.activity import ActorActivity

# The clocks of two machines differ by less than a millisecond a second.
_DRIFT: Final = 1e-3


class Span(NamedTuple):
    """A span of an actor's time.

    Attributes:
        began_s: Its begin, on the learner's clock.
        ended_s: Its end.
        seconds: The time in each state, in seconds; they add up to the span's length.
    """

    began_s: float
    ended_s: float
    seconds: tuple[float, ...]


class ActivityTimes:
    """The times of one stream's reports.

    The seconds of a report, together, are the time since its actor started. A report that comes late, for the learner
    reads nothing while it waits for room, is known by that: the one that took least time on its way gives the
    difference between both clocks.
    """

    def __init__(self) -> None:
        self._last: tuple[float, tuple[float, ...]] | None = None
        self._offset_s = 0.0
        self._came_s = 0.0

    def span(self, now: float, activity: ActorActivity) -> Span | None:
        """Returns the span since the last report; None for the first of a stream, or for a report without sense.

        Args:
            now: The time at which the report has come.
            activity: The report.
        """
        acted_s = sum(activity.seconds)
        if self._last is None or any(new < old for new, old in zip(activity.seconds, self._last[1], strict=True)):
            self._last, self._offset_s, self._came_s = (now, activity.seconds), now - acted_s, now
            return None
        began_s, before = self._last
        self._offset_s = min(now - acted_s, self._offset_s + _DRIFT * (now - self._came_s))
        self._came_s = now
        ended_s = acted_s + self._offset_s
        if ended_s <= began_s:
            return None
        self._last = ended_s, activity.seconds
        spent = [new - old for new, old in zip(activity.seconds, before, strict=True)]
        total_s = sum(spent)
        # The two clocks may differ a little: what the actor has spent fills the time exactly.
        scale = (ended_s - began_s) / total_s if total_s > 0 else 0.0
        return Span(began_s, ended_s, tuple(seconds * scale for seconds in spent))
