"""Holds inserting and sampling at a ratio.

Cassirer et al. 2021, "Reverb: A Framework For Experience Replay", section 3.3, https://arxiv.org/abs/2102.04736.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rollcast.learner.replay.info import LimiterInfo, Waiting
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.services.errors import ConfigurationError

# How often one that waits checks that it is still wanted.
_CHECK_S = 0.5

_COUNTERS: Final = ("inserts", "samples", "size", "enough")
# Nobody counts so far; beyond it, floats cannot.
_MAX_COUNT: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    """One who waits: whether it may go on, why not, and since when."""

    may: Callable[[], bool]
    why: Callable[[], str]
    since: float
    who: str


class RateLimiter:
    """Lets insertions and samples pass while they keep the ratio, and makes whoever is ahead wait.

    Invariant, with d = inserts * samples_per_insert - samples: as soon as size >= min_size,

        min_diff <= d <= max_diff,   min_diff = samples_per_insert * min_size - error_buffer,
                                     max_diff = samples_per_insert * min_size + error_buffer.

    Below min_size nothing is sampled, so d >= min_diff need not hold, and d <= max_diff holds. A buffer that had to
    displace entries is as full as it gets: then the size it has is enough, even below min_size.

    Nobody waits for ever: the settings are refused unless at every d that can be, one side may go on, for insertions
    of up to `max_insert` entries and samples of up to `max_sample`, and the first sample may be drawn at min_size:

        error_buffer >= max(samples_per_insert * max_insert, max_sample).

    Any thread. Everything is guarded by `changed`, which the buffer shares as its own lock: who was let in tells so by
    `inserted` or `sampled` before the lock is released.
    """

    def __init__(
        self,
        samples_per_insert: float | None,
        *,
        min_size: int,
        error_buffer: float | None = None,
        max_insert: int = 1,
        max_sample: int = 1,
        changed: threading.Condition | None = None,
    ) -> None:
        """Starts with nothing inserted.

        Args:
            samples_per_insert: Samples an insertion pays for, above 0; None: there is no limit but `min_size`.
            min_size: Entries before anything is sampled, at least 1.
            error_buffer: In samples; None: the smallest that is allowed.
            max_insert: Entries of the largest insertion.
            max_sample: Entries of the largest sample.
            changed: A condition over a re-entrant lock; None: its own.

        Raises:
            ConfigurationError: If the settings could make both sides wait for each other.
        """
        if min_size < 1:
            raise ConfigurationError(f"min_size is {min_size}; expected at least 1; raise it")
        self._changed = changed or threading.Condition()
        self._samples_per_insert = samples_per_insert or 0.0
        self._min_size = min_size
        self._min_diff, self._max_diff = -math.inf, math.inf
        self._max_insert: float = math.inf
        self._max_sample: float = math.inf
        if samples_per_insert is not None:
            error_buffer = _checked_error_buffer(samples_per_insert, error_buffer, max_insert, max_sample)
            self._min_diff = samples_per_insert * min_size - error_buffer
            self._max_diff = samples_per_insert * min_size + error_buffer
            self._max_insert, self._max_sample = max_insert, max_sample
        self._waiting: dict[object, _Wait] = {}
        self.reset()

    @property
    def max_insert(self) -> float:
        """Entries of the largest insertion that is let in; inf without a limit."""
        return self._max_insert

    @property
    def max_sample(self) -> float:
        """Entries of the largest sample that is let in; inf without a limit."""
        return self._max_sample

    def reset(self) -> None:
        """Forgets what was inserted and sampled."""
        with self._changed:
            self._inserts = self._samples = self._size = 0
            self._enough = self._min_size
            self._tell()

    def can_insert(self, n: int) -> bool:
        """Whether n entries may be inserted now."""
        with self._changed:
            return self._difference(n) <= self._max_diff + self._rounding(n)

    def can_sample(self, n: int) -> bool:
        """Whether n entries may be sampled now."""
        with self._changed:
            return self._size >= self._enough and self._difference() - n >= self._min_diff - self._rounding()

    def inserted(self, n: int, *, displaced: int = 0) -> None:
        """Counts n entries that were inserted, for which as many as `displaced` had to go."""
        with self._changed:
            self._inserts += n
            self._size += n - displaced
            if displaced:
                self._enough = min(self._min_size, self._size)
            self._tell()

    def sampled(self, n: int) -> None:
        """Counts n entries that were sampled."""
        with self._changed:
            self._samples += n
            self._tell()

    def removed(self, n: int) -> None:
        """Counts n entries that have gone without another in their place."""
        with self._changed:
            self._size -= n

    def settle(self) -> None:
        """Counts what is there as the first filling: no sample, and no insertion beyond `min_size`.

        From then on d is in the middle of its band, or below it while `min_size` is not reached: the same as if actors
        had inserted up to there. Neither a burst of samples is paid for, nor has anybody to draw before the next
        insertion.
        """
        with self._changed:
            self._inserts, self._samples = min(self._inserts, self._min_size), 0
            self._tell()

    def await_insert(self, n: int, timeout_s: float, is_active: Callable[[], bool], *, who: str = "") -> bool:
        """Waits until n entries may be inserted; the caller holds the lock, and inserts before it lets go of it.

        Args:
            n: How many.
            timeout_s: For how long, in seconds, at most.
            is_active: Looked at now and then while waiting; False gives up.
            who: A name for one who asks again after each refusal, nobody else's: from the first one until it is let in,
                or gives up, `state` says that it waits. Empty: the wait is over when this returns.

        Returns:
            Whether they may.
        """
        if not self._waiting and self.can_insert(n):
            return True  # to be ready to wait is a tenth of a small sample's time
        wait = _Wait(lambda: self.can_insert(n), lambda: self.why_no_insert(n), time.monotonic(), who)
        return self._wait(wait, timeout_s, is_active)

    def await_sample(self, n: int, timeout_s: float, is_active: Callable[[], bool], *, who: str = "") -> bool:
        """Waits until n entries may be sampled; the caller holds the lock, and samples before it lets go of it.

        Args:
            n: How many.
            timeout_s: For how long, in seconds, at most.
            is_active: Looked at now and then while waiting; False gives up.
            who: See `await_insert`.

        Returns:
            Whether they may.
        """
        if not self._waiting and self.can_sample(n):
            return True  # to be ready to wait is a tenth of a small sample's time
        wait = _Wait(lambda: self.can_sample(n), lambda: self.why_no_sample(n), time.monotonic(), who)
        return self._wait(wait, timeout_s, is_active)

    def stop_waiting(self, who: str) -> None:
        """Forgets that one waits who asks again after each refusal; see `await_insert`."""
        with self._changed:
            self._waiting.pop(who, None)

    def why_no_insert(self, n: int) -> str:
        """What an insertion of n entries waits for, in words."""
        with self._changed:
            excess = max(self._difference(n) - self._max_diff, 0.0)
            return (
                f"an insertion of {n} waits for {excess:g} samples: ({self._inserts} inserted + {n}) * "
                f"{self._samples_per_insert:g} - {self._samples} sampled may not exceed {self._max_diff:g}"
            )

    def why_no_sample(self, n: int) -> str:
        """What a sample of n entries waits for, in words."""
        with self._changed:
            if self._size < self._enough:
                return f"a sample of {n} waits for {self._enough - self._size} entries: {self._size} of {self._enough}"
            return (
                f"a sample of {n} waits for insertions: {self._inserts} inserted * {self._samples_per_insert:g} - "
                f"{self._samples} sampled - {n} may not be below {self._min_diff:g}"
            )

    def info(self) -> LimiterInfo:
        """How it stands now; who may go on, and has not yet come to it, does not wait."""
        with self._changed:
            now = time.monotonic()
            return LimiterInfo(
                inserts=self._inserts,
                samples=self._samples,
                size=self._size,
                min_size=self._min_size,
                enough=self._enough,
                difference=self._difference() if math.isfinite(self._max_diff) else 0.0,
                min_diff=self._min_diff,
                max_diff=self._max_diff,
                waiting=tuple(
                    Waiting(reason=wait.why(), seconds=now - wait.since, who=wait.who)
                    for wait in sorted(self._waiting.values(), key=lambda wait: wait.since)
                    if not wait.may()
                ),
            )

    def state(self) -> PartState:
        """See `Part.state`."""
        return PartState(values={name: getattr(self, f"_{name}") for name in _COUNTERS})

    def load_state(self, state: PartState) -> None:
        """See `Part.load_state`."""
        for name in _COUNTERS:
            setattr(self, f"_{name}", state.whole(name, 0, _MAX_COUNT))
        self._tell()

    def _tell(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    def _difference(self, n_more: int = 0) -> float:
        return (self._inserts + n_more) * self._samples_per_insert - self._samples

    def _rounding(self, n_more: int = 0) -> float:
        """What floats may be wrong by: neither side may wait for ever for the last bit of the difference."""
        return 1e-9 + 1e-14 * (self._inserts + n_more) * self._samples_per_insert

    def _wait(self, wait: _Wait, timeout_s: float, is_active: Callable[[], bool]) -> bool:
        with self._changed:
            key = wait.who or wait
            earlier = self._waiting.pop(key, wait)
            if wait.may():
                return True
            # it has waited since its first refusal
            self._waiting[key] = replace(wait, since=earlier.since)
            try:
                while not wait.may():
                    if not is_active():
                        self._waiting.pop(key, None)  # nor will it ask again
                        return False
                    left = wait.since + timeout_s - time.monotonic()
                    if left <= 0:
                        return False
                    self._changed.wait(min(left, _CHECK_S))
                return True
            finally:
                if not wait.who or wait.may():
                    self._waiting.pop(key, None)


def _checked_error_buffer(
    samples_per_insert: float, error_buffer: float | None, max_insert: int, max_sample: int
) -> float:
    """The error buffer, or the smallest one that is allowed."""
    if not 0 < samples_per_insert < math.inf:
        raise ConfigurationError(f"samples_per_insert is {samples_per_insert}; expected a number above 0; raise it")
    paid = samples_per_insert * max_insert
    smallest = max(paid, max_sample)
    if error_buffer is None:
        return smallest
    if not smallest <= error_buffer < math.inf:
        raise ConfigurationError(
            f"error_buffer is {error_buffer:g}; expected at least {smallest:g}, because an insertion of {max_insert} "
            f"entries pays for {paid:g} samples and a batch takes {max_sample}, and neither may wait for ever; raise "
            "it, or leave it empty"
        )
    return error_buffer
