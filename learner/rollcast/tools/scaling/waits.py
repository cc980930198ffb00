"""Measures how much the trainer and the actors have waited lately, from a learner's status at regular intervals."""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rollcast.services.replay.replay import ACTORS
from rollcast.services.status.status import LearnerStatus

# The fewest updates in a full window: with fewer, the measured waits would depend on the window's exact begin and end.
# Slow updates make a window longer by at most this factor.
_MIN_UPDATES: Final = 5
_MAX_STRETCH: Final = 4.0
# With fewer times between updates, the longest one also counts.
_MIN_SPANS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The waits of one window.

    Attributes:
        learner: The share of the time that the trainer waited for the actors, in [0, 1].
        actors: The share of the time that the actors waited for the learner, in [0, 1].
        n_actors: The mean number of connected actors.
        env_steps_per_second: The environment steps used for training, per second, without the longest pause between
            updates; 0: there was no update.
    """

    learner: float
    actors: float
    n_actors: float
    env_steps_per_second: float


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    waited_s: float
    actors_wait: bool
    n_actors: int
    env_steps: int
    updates: int


class WaitWindow:
    """The statuses of the last seconds. Used by one thread.

    A status holds the trainer's total wait since training began. The difference between two statuses is the wait in
    between.

    Args:
        seconds: The length of a full window; up to four times as long if it has fewer than five updates.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[_Sample] = deque()

    def clear(self) -> None:
        """Forgets all statuses."""
        self._samples.clear()

    def add(self, status: LearnerStatus, now: float) -> None:
        """Adds a status of a learner that trains. If the run has returned to a checkpoint, clears the window first.

        Args:
            status: The learner's status.
            now: The time, in seconds of a monotonic clock.
        """
        # the waits that have ended, and the current one
        waited_s = status.waiting_fraction * status.seconds + (status.waiting_s if status.waiting_for else 0.0)
        sample = _Sample(now, waited_s, _actors_wait(status), status.actors_alive, status.env_steps, status.updates)
        if self._samples and sample.env_steps < self._samples[-1].env_steps:
            self.clear()
        self._samples.append(sample)
        while len(self._samples) > 1 and self._is_full_from(self._samples[1]):
            self._samples.popleft()

    def waits(self) -> Waits | None:
        """Returns the waits of the window; None until it is full."""
        if not self._samples or not self._is_full_from(self._samples[0]):
            return None
        first, last, n = self._samples[0], self._samples[-1], len(self._samples)
        seconds = last.time - first.time
        return Waits(
            learner=min(max((last.waited_s - first.waited_s) / seconds, 0.0), 1.0),
            actors=sum(sample.actors_wait for sample in self._samples) / n,
            n_actors=sum(sample.n_actors for sample in self._samples) / n,
            env_steps_per_second=self._env_steps_per_second(),
        )

    def _is_full_from(self, first: _Sample) -> bool:
        last = self._samples[-1]
        seconds, updates = last.time - first.time, last.updates - first.updates
        return seconds >= (self._seconds if updates >= _MIN_UPDATES else _MAX_STRETCH * self._seconds)

    def _env_steps_per_second(self) -> float:
        """Returns the steps per second from the first to the last observed update, because steps come in batches.

        The longest time between two updates does not count, because the learner may have stood still: its process was
        frozen, or its disk was slow.
        """
        after = [sample for before, sample in pairwise(self._samples) if sample.updates > before.updates]
        if len(after) < 2:
            after = [self._samples[0], self._samples[-1]]
        spans = [(later.time - earlier.time, later.env_steps - earlier.env_steps) for earlier, later in pairwise(after)]
        if len(spans) >= _MIN_SPANS:
            spans.remove(max(spans))
        return sum(steps for _, steps in spans) / sum(seconds for seconds, _ in spans)


def _actors_wait(status: LearnerStatus) -> bool:
    """Returns True if actors wait for the learner now: for its queue, or for the limiter of its buffer."""
    if status.replay is not None:
        return any(wait.who == ACTORS for wait in status.replay.waiting)
    # a trainer takes whole batches out of a queue that actors keep full
    return 2 * status.queue_size >= status.queue_capacity > 0
