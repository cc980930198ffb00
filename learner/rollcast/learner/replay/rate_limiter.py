"""Keeps the ratio between samples and insertions: the side that is ahead waits.

Cassirer et al. 2021, "Reverb: A Framework For Experience Replay", section 3.3, https://arxiv.org/abs/2102.04736.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rollcast.learner.replay.info import LimiterInfo
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.services.errors import ConfigurationError
from rollcast.services.process.waiting import wait_for
from rollcast.services.replay.replay import ReplayWaiting

_COUNTERS: Final = ("inserts", "samples", "size", "enough")
# The largest accepted count in a checkpoint.
_MAX_COUNT: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    """A waiting caller: tells whether it may continue, the reason for the wait, and its start."""

    may: Callable[[], bool]
    why: Callable[[], str]
    since: float
    who: str


class RateLimiter:
    """Admits insertions and samples while they keep the ratio. The side that would leave the band waits.

    With d = inserts * samples_per_insert - samples, counted after the operation,

        an insertion passes  if d <= max_diff = samples_per_insert * min_size + error_buffer, or size < min_size before,
        a sample passes      if d >= min_diff = samples_per_insert * min_size - error_buffer, and size >= min_size.

    Below min_size, no sampling is possible, so insertions do not wait for samples. A buffer that had to remove entries
    for new ones is full. From then on its size is enough for sampling, even below min_size, but not below `max_sample`.

    Invariant: d <= max_diff, and d >= min_diff from the first sample on. If sampling uses up entries, d may exceed its
    bound, because d also counts the draws that removed entries had left. Such a buffer may also fall below min_size at
    any d.

    The two sides never block each other forever. Below min_size, any insertion passes. From min_size on, at every
    possible d, one side may continue with insertions of up to `max_insert` entries and samples of up to `max_sample`.
    The settings must therefore satisfy:

        error_buffer >= max(samples_per_insert * max_insert, max_sample).

    Insertions pass in order of arrival, and so do samples. Otherwise small samples could use up one by one the entries
    for which a large sample waits, and the large sample would wait forever.

    Thread-safe. `changed` guards everything; the buffer uses the same lock. A caller that may continue counts
    its entries with `inserted` or `sampled` before it releases the lock.

    Attributes:
        max_insert: Entries of the largest accepted insertion; inf without a limit.
        max_sample: Entries of the largest accepted sample; inf without a limit.
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
        """Starts without insertions.

        Args:
            samples_per_insert: Samples per inserted entry, above 0; None: only `min_size` limits sampling.
            min_size: Entries needed before the first sample, at least 1.
            error_buffer: Samples by which either side may be ahead; None: the smallest allowed number.
            max_insert: Entries of the largest insertion.
            max_sample: Entries of the largest sample.
            changed: A condition over a re-entrant lock; None: a new one.

        Raises:
            ConfigurationError: The settings could make both sides wait for each other.
        """
        if min_size < 1:
            raise ConfigurationError(f"min_size is {min_size}; expected at least 1; raise it")
        self._changed = changed or threading.Condition()
        self._samples_per_insert = samples_per_insert or 0.0
        self._min_size = min_size
        self._least_enough = min(min_size, max_sample)
        self._min_diff, self._max_diff = -math.inf, math.inf
        self.max_insert: float = math.inf
        self.max_sample: float = math.inf
        if samples_per_insert is not None:
            error_buffer = _checked_error_buffer(samples_per_insert, error_buffer, max_insert, max_sample)
            self._min_diff = samples_per_insert * min_size - error_buffer
            self._max_diff = samples_per_insert * min_size + error_buffer
            self.max_insert, self.max_sample = max_insert, max_sample
        # The waiting callers, in order of arrival.
        self._inserters: dict[object, _Wait] = {}
        self._samplers: dict[object, _Wait] = {}
        self.reset()

    def reset(self) -> None:
        """Sets all counts to 0."""
        with self._changed:
            self._inserts = self._samples = self._size = 0
            self._enough = self._min_size
            self._tell()

    def can_insert(self, n: int) -> bool:
        """Returns True if n entries may be inserted now."""
        with self._changed:
            return self._size < self._enough or self._difference(n) <= self._max_diff + self._rounding(n)

    def can_sample(self, n: int) -> bool:
        """Returns True if n entries may be sampled now."""
        with self._changed:
            return self._size >= self._enough and self._difference() - n >= self._min_diff - self._rounding()

    def inserted(self, n: int, *, displaced: int = 0) -> None:
        """Counts n inserted entries, and `displaced` entries that were removed to make room."""
        with self._changed:
            self._inserts += n
            self._size += n - displaced
            if displaced:
                enough = min(self._min_size, self._size)
                self._enough = enough if enough > self._least_enough else self._least_enough
            self._tell()

    def sampled(self, n: int) -> None:
        """Counts n sampled entries."""
        with self._changed:
            self._samples += n
            self._tell()

    def removed(self, n: int) -> None:
        """Counts n removed entries that were not replaced."""
        with self._changed:
            self._size -= n

    def settle(self) -> None:
        """Resets the counters as if actors had just filled the buffer: at most `min_size` insertions, no samples.

        From then on, d is in the middle of its band, or below it until the buffer has `min_size` entries. So no burst
        of samples follows, and no insertion waits for samples.
        """
        with self._changed:
            self._inserts, self._samples = min(self._inserts, self._min_size), 0
            self._tell()

    def await_insert(self, n: int, timeout_s: float, is_active: Callable[[], bool], *, who: str = "") -> bool:
        """Waits until n entries may be inserted. The caller holds the lock until it has inserted them.

        Args:
            n: Number of entries.
            timeout_s: The longest wait, in seconds.
            is_active: Called at least every second while waiting; the wait ends when it returns False.
            who: A unique name for a caller that retries after each refusal. The caller keeps its place, and `info`
                lists it, from its first refusal until it may continue, cancels, or `stop_waiting` is called. Empty: the
                wait ends when this method returns.

        Returns:
            True if the entries may be inserted.
        """
        if not self._inserters and self.can_insert(n):
            return True  # preparing a wait would take a tenth of the time of a small sample
        wait = _Wait(lambda: self.can_insert(n), lambda: self.why_no_insert(n), time.monotonic(), who)
        return self._wait(self._inserters, wait, timeout_s, is_active)

    def await_sample(self, n: int, timeout_s: float, is_active: Callable[[], bool], *, who: str = "") -> bool:
        """Waits until n entries may be sampled. The caller holds the lock until it has sampled them.

        Args:
            n: Number of entries.
            timeout_s: The longest wait, in seconds.
            is_active: Called at least every second while waiting; the wait ends when it returns False.
            who: See `await_insert`.

        Returns:
            True if the entries may be sampled.
        """
        if not self._samplers and self.can_sample(n):
            return True
        wait = _Wait(lambda: self.can_sample(n), lambda: self.why_no_sample(n), time.monotonic(), who)
        return self._wait(self._samplers, wait, timeout_s, is_active)

    def stop_waiting(self, who: str) -> None:
        """Removes a caller from the list of waiting callers; see `await_insert`."""
        with self._changed:
            self._inserters.pop(who, None)
            self._samplers.pop(who, None)
            self._tell()

    def why_no_insert(self, n: int) -> str:
        """Describes the wait of an insertion of n entries."""
        with self._changed:
            if self.can_insert(n):
                return f"an insertion of {n} waits for its turn behind others"
            excess = self._difference(n) - self._max_diff
            return (
                f"an insertion of {n} waits for {excess:g} samples: ({self._inserts} inserted + {n}) * "
                f"{self._samples_per_insert:g} - {self._samples} sampled may not exceed {self._max_diff:g}"
            )

    def why_no_sample(self, n: int) -> str:
        """Describes the wait of a sample of n entries."""
        with self._changed:
            if self._size < self._enough:
                return f"a sample of {n} waits for {self._enough - self._size} entries: {self._size} of {self._enough}"
            if self.can_sample(n):
                return f"a sample of {n} waits for its turn behind others"
            return (
                f"a sample of {n} waits for insertions: {self._inserts} inserted * {self._samples_per_insert:g} - "
                f"{self._samples} sampled - {n} may not be below {self._min_diff:g}"
            )

    def info(self) -> LimiterInfo:
        """Returns the current state. A caller that may continue but has not woken up yet is not listed as waiting."""
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
                    ReplayWaiting(reason=wait.why(), seconds=now - wait.since, who=wait.who)
                    for wait in sorted(self._held_up(), key=lambda wait: wait.since)
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
        if self._inserters or self._samplers:
            self._changed.notify_all()

    def _held_up(self) -> list[_Wait]:
        """Returns the waiting callers, except the first ones of each side that may continue."""
        return [
            wait
            for side in (self._inserters, self._samplers)
            for wait in itertools.dropwhile(lambda wait: wait.may(), side.values())
        ]

    def _difference(self, n_more: int = 0) -> float:
        return (self._inserts + n_more) * self._samples_per_insert - self._samples

    def _rounding(self, n_more: int = 0) -> float:
        """Returns the tolerance for floats, so that no side waits forever because of rounding."""
        return 1e-9 + 1e-14 * (self._inserts + n_more) * self._samples_per_insert

    def _wait(self, side: dict[object, _Wait], wait: _Wait, timeout_s: float, is_active: Callable[[], bool]) -> bool:
        with self._changed:
            key = wait.who or wait
            # a caller that asks again has waited since its first refusal
            side[key] = replace(wait, since=side[key].since) if key in side else wait
            asks_again = False

            def may() -> bool:
                return next(iter(side), key) == key and wait.may()

            try:
                may_go_on = wait_for(self._changed, may, until=wait.since + timeout_s, is_active=is_active)
                asks_again = not may_go_on and bool(wait.who) and is_active()
                return may_go_on
            finally:
                if not asks_again:
                    side.pop(key, None)
                    self._tell()


def _checked_error_buffer(
    samples_per_insert: float, error_buffer: float | None, max_insert: int, max_sample: int
) -> float:
    """Returns the error buffer; the smallest allowed one if none is given."""
    if not 0 < samples_per_insert < math.inf:
        raise ConfigurationError(f"samples_per_insert is {samples_per_insert}; expected a number above 0; raise it")
    paid = samples_per_insert * max_insert
    smallest = max(paid, max_sample)
    if error_buffer is None:
        return smallest
    if not smallest <= error_buffer < math.inf:
        raise ConfigurationError(
            f"error_buffer is {error_buffer:g}; expected at least {smallest:g}, because an insertion of {max_insert} "
            f"entries pays for {paid:g} samples and a batch takes {max_sample}, and neither side may wait "
            "forever; raise it, or leave it empty"
        )
    return error_buffer
