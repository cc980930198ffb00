"""Adds up the time of a thread by state."""

import enum
import time
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=enum.Enum)


class _Moment(NamedTuple, Generic[State]):
    state: State
    since: float
    # the seconds in each state before `since`, in the order of the states
    seconds: tuple[float, ...]


class StateClock(Generic[State]):
    """The seconds that a thread has spent in each state. Only this thread enters states. Any thread may read.

    A change of state takes about a microsecond.

    Args:
        states: The states. The clock starts in the first state.
        clock: Returns the time in seconds.
    """

    def __init__(self, states: type[State], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states = tuple(states)
        self._index = {state: i for i, state in enumerate(self._states)}
        # one tuple, so that a reader never sees the state of one moment with the times of another
        self._now = _Moment(self._states[0], clock(), (0.0,) * len(self._states))

    @property
    def state(self) -> State:
        """The current state."""
        return self._now.state

    def enter(self, state: State) -> None:
        """Ends the current state and begins `state`. If `state` is the current state, it continues."""
        before = self._now
        if state is not before.state:
            now = self._clock()
            self._now = _Moment(state, now, self._until(before, now))

    def seconds(self) -> Mapping[State, float]:
        """Returns the time in each state so far, including the current state."""
        return dict(zip(self._states, self.in_order(), strict=True))

    def in_order(self) -> tuple[float, ...]:
        """Returns the same times as `seconds`, in the order of the states."""
        return self._until(self._now, self._clock())

    def _until(self, moment: "_Moment[State]", now: float) -> tuple[float, ...]:
        i = self._index[moment.state]
        seconds = moment.seconds
        return (*seconds[:i], seconds[i] + now - moment.since, *seconds[i + 1 :])
