"""Adds up what an actor does with its time."""

import enum
import time
from collections.abc import Callable, Mapping


class ActingState(enum.Enum):
    """The work of an actor's main thread."""

    CONNECTING = "connecting"
    WAITING_FOR_CREDIT = "waiting for credit"
    WAITING_FOR_POLICY = "waiting for a policy"
    LOADING = "loading a policy"
    ACTING = "acting"


class StateClock:
    """The seconds that an actor has spent in each state. Its main thread enters states; any thread may read.

    Entering a state takes about a microsecond, three times a rollout.

    Args:
        clock: Returns seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(ActingState, 0.0)
        # one tuple, so that a reader never sees the state of one moment with the time of another
        self._now = (ActingState.CONNECTING, clock())

    @property
    def state(self) -> ActingState:
        """The state now."""
        return self._now[0]

    def enter(self, state: ActingState) -> None:
        """Ends the state of now and begins another; the same one goes on."""
        before, since = self._now
        if state is before:
            return
        now = self._clock()
        self._seconds[before] += now - since
        self._now = (state, now)

    def seconds(self) -> Mapping[ActingState, float]:
        """Returns the time in each state so far, with that of the state of now."""
        state, since = self._now
        return {**self._seconds, state: self._seconds[state] + self._clock() - since}
