"""Computes the times of an actor's activity reports on the learner's clock."""

from typing import Final, NamedTuple

from rollcast.services.joining.activity import ActorActivity

# The clocks of two machines differ by less than a millisecond a second.
_DRIFT: Final = 1e-3


class Span(NamedTuple):
    """A span of an actor's time.

    Attributes:
        began_s: The start of the span, on the learner's clock.
        ended_s: The end of the span, on the learner's clock.
        seconds: The seconds in each state, which add up to the span's length.
    """

    began_s: float
    ended_s: float
    seconds: tuple[float, ...]


class ActivityTimes:
    """The times of one stream's reports.

    The seconds of a report add up to the time since its actor started. The fastest report gives the difference between
    the two clocks, and so the delay of other reports. The learner reads no reports while it waits for room.
    """

    def __init__(self) -> None:
        self._last: tuple[float, tuple[float, ...]] | None = None
        self._offset_s = 0.0
        self._came_s = 0.0

    def span(self, now: float, activity: ActorActivity) -> Span | None:
        """Returns the span since the last report; None for a stream's first report, or for an invalid report.

        Args:
            now: The arrival time of the report.
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
        # The two clocks may differ slightly: the span is filled exactly with the actor's time.
        scale = (ended_s - began_s) / total_s if total_s > 0 else 0.0
        return Span(began_s, ended_s, tuple(seconds * scale for seconds in spent))
