import itertools
import math
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rollcast.learner.replay.rate_limiter import RateLimiter
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.services.errors import ConfigurationError
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import always


class LimiterMachine(RuleBasedStateMachine):
    """Random interleavings of those who may; nobody who may not goes on, and somebody always may."""

    @initialize(
        samples_per_insert=st.floats(0.01, 300),
        min_size=st.integers(1, 60),
        max_insert=st.integers(1, 40),
        max_sample=st.integers(1, 60),
        extra=st.none() | st.floats(0, 100),
        spare=st.integers(0, 60),
        loaded=st.just(0) | st.integers(0, 300),
    )
    def start(self, samples_per_insert, min_size, max_insert, max_sample, extra, spare, loaded):
        paid = samples_per_insert * max_insert
        error_buffer = None if extra is None else max(paid, max_sample) + extra
        self.limiter = RateLimiter(
            samples_per_insert,
            min_size=min_size,
            error_buffer=error_buffer,
            max_insert=max_insert,
            max_sample=max_sample,
        )
        self.max_insert, self.max_sample = max_insert, max_sample
        self.capacity = min_size + spare
        if loaded:
            self.limiter.inserted(loaded, displaced=max(loaded - self.capacity, 0))
            self.limiter.settle()

    @rule(n=st.integers(1, 40))
    def insert(self, n):
        n = min(n, self.max_insert)
        if self.limiter.can_insert(n):
            size = self.limiter.info().size
            self.limiter.inserted(n, displaced=max(size + n - self.capacity, 0))

    @rule(n=st.integers(1, 60))
    def sample(self, n):
        n = min(n, self.max_sample)
        if self.limiter.can_sample(n):
            self.limiter.sampled(n)

    @invariant()
    def stays_in_its_band(self):
        state = self.limiter.info()
        assert state.difference <= state.max_diff + 1e-6
        if state.size >= state.min_size:
            assert state.difference >= state.min_diff - 1e-6
        else:
            assert state.samples == 0

    @invariant()
    def somebody_may_go_on(self):
        assert self.limiter.can_insert(self.max_insert) or self.limiter.can_sample(self.max_sample)


LimiterMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=60)
test_never_leaves_its_band_and_never_blocks_both = LimiterMachine.TestCase


# A buffer whose draws use entries up: the draws left of each entry, the oldest first; then the limiter's d and enough.
SmallBuffer = tuple[tuple[int, ...], int, int]


def next_small_buffers(limiter: RateLimiter, state: SmallBuffer, most: int, capacity: int) -> Iterator[SmallBuffer]:
    """Yields what each permitted insertion or sample makes of a state, whichever entries are drawn."""
    lefts, d, enough = state
    max_insert, max_sample = int(limiter.max_insert), int(limiter.max_sample)
    counts = {"inserts": 1000, "samples": 1000 * most - d, "size": len(lefts), "enough": enough}

    def after() -> tuple[int, int]:
        info = limiter.info()
        limiter.load_state(PartState(values=counts))
        return round(info.difference), info.enough

    limiter.load_state(PartState(values=counts))
    assert limiter.can_insert(max_insert) or limiter.can_sample(max_sample), f"nobody may go on: {state}"
    for n in range(1, max_insert + 1):
        if limiter.can_insert(n):
            n_displaced = max(len(lefts) + n - capacity, 0)
            limiter.inserted(n, displaced=n_displaced)
            yield ((*lefts, *[most] * n)[n_displaced:], *after())
    for n in range(1, min(max_sample, len(lefts)) + 1):
        if limiter.can_sample(n):
            limiter.sampled(n)
            d_and_enough = after()
            for drawn in itertools.combinations_with_replacement(range(len(lefts)), n):
                left = [k - drawn.count(i) for i, k in enumerate(lefts)]
                if min(left) >= 0:
                    yield (tuple(k for k in left if k), *d_and_enough)


@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize(("most", "min_size", "max_insert", "max_sample"), [(2, 3, 1, 1), (2, 3, 2, 3), (3, 2, 2, 2)])
def test_neither_side_waits_for_ever_where_draws_use_entries_up(most, min_size, max_insert, max_sample, spare):
    limiter = RateLimiter(float(most), min_size=min_size, max_insert=max_insert, max_sample=max_sample)
    highest = limiter.info().max_diff + most * (min_size + max_insert - 1)
    capacity = min_size + max_insert - 1 + spare
    start: SmallBuffer = ((), 0, min_size)
    seen, to_do = {start}, [start]
    while to_do:  # every state that some order of insertions and draws leads to
        new = set(next_small_buffers(limiter, to_do.pop(), most, capacity)) - seen
        assert all(d <= highest for _, d, _ in new), "where only insertions into a full buffer displace, d has a bound"
        seen |= new
        to_do += new
    assert len(seen) > 50


def test_without_ratio_only_min_size_limits():
    limiter = RateLimiter(None, min_size=5)
    assert not limiter.can_sample(1)
    limiter.inserted(5)
    assert limiter.can_sample(10**9)
    assert limiter.can_insert(10**9)
    limiter.removed(1)
    assert not limiter.can_sample(1)
    assert math.isinf(limiter.max_insert)


def test_a_full_buffer_is_enough_even_below_min_size_but_not_below_a_batch():
    limiter = RateLimiter(None, min_size=10, max_sample=4)
    limiter.inserted(9)
    assert not limiter.can_sample(1)
    limiter.inserted(3, displaced=3)
    assert limiter.can_sample(1)
    limiter.removed(6)
    limiter.inserted(2, displaced=2)
    assert not limiter.can_sample(1)
    limiter.inserted(1)
    assert limiter.can_sample(4)


@pytest.mark.parametrize(
    ("samples_per_insert", "error_buffer", "smallest"),
    [(0.5, 7.9, 8), (3.0, 11.0, 12), (0.5, math.inf, 8)],
    ids=["below a sample", "below what an insertion pays", "not finite"],
)
def test_rejects_an_error_buffer_below_the_smallest_as_reverb_does(samples_per_insert, error_buffer, smallest):
    with pytest.raises(ConfigurationError, match=f"error_buffer is {error_buffer:g}; expected at least {smallest}"):
        RateLimiter(samples_per_insert, min_size=10, error_buffer=error_buffer, max_insert=4, max_sample=8)
    RateLimiter(samples_per_insert, min_size=10, error_buffer=smallest, max_insert=4, max_sample=8)


@pytest.mark.parametrize(
    ("samples_per_insert", "min_size", "message"),
    [
        (None, 0, "min_size is 0; expected at least 1"),
        *((ratio, 1, "samples_per_insert is") for ratio in (0.0, -1.0, math.nan, math.inf)),
    ],
)
def test_rejects_impossible_settings(samples_per_insert: float | None, min_size: int, message: str):
    with pytest.raises(ConfigurationError, match=message):
        RateLimiter(samples_per_insert, min_size=min_size)


# The cases of Reverb's rate_limiter_test.cc; its bands are any, ours lie around samples_per_insert * min_size.
# Steps: i inserts an entry, s draws one, r removes one; +2i, +2s: then at most two may be inserted or drawn at once.
@pytest.mark.parametrize(
    ("samples_per_insert", "min_size", "error_buffer", "steps"),
    [
        pytest.param(1.0, 2, 1.0, "+0s i +0s i +1s", id="BlocksSamplesUntilMinInsertsReached"),
        pytest.param(1.5, 1, 4.5, "i +3i i s s s s s +1s s +0s", id="OperationsWithinTheBufferAreNotBlocked"),
        pytest.param(1.5, 2, 1.5, "+0s i +0s i +1s +1i i +0i s +0i s +1i", id="BlocksCallsThatExceedsTheMinMaxLimits"),
        pytest.param(1.0, 1, 2.0, "+0s i +2s", id="CanSample"),
        pytest.param(1.5, 2, 3.0, "i i +2i i i +0i s s +1i", id="CanInsert"),
        pytest.param(
            5.0, 2, 5.0, "i i i +0i s +0i r +0i r +9i", id="UnblocksInsertsIfDeletedItemsBringsSizeBelowMinSize"
        ),
        pytest.param(5.0, 2, 5.0, "i i s +4s r +0s i +9s", id="BlocksSamplesIfDeleteBringsSizeBelowMinSize"),
    ],
)
def test_agrees_with_reverb_on_who_may_go_on(samples_per_insert, min_size, error_buffer, steps):
    limiter = RateLimiter(samples_per_insert, min_size=min_size, error_buffer=error_buffer)
    for number, step in enumerate(steps.split()):
        where = f"step {number}, {step}: {limiter.info()}"
        if step == "i":
            assert limiter.can_insert(1), where
            limiter.inserted(1)
        elif step == "s":
            assert limiter.can_sample(1), where
            limiter.sampled(1)
        elif step == "r":
            limiter.removed(1)
        else:
            may = limiter.can_insert if step[2] == "i" else limiter.can_sample
            assert max([n for n in range(1, 10) if may(n)], default=0) == int(step[1]), where


def test_retrying_caller_counts_as_waiting_since_its_first_refusal(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limiter = RateLimiter(1.0, min_size=2, max_insert=2, max_sample=2)
    limiter.inserted(2)
    limiter.inserted(2)
    assert not limiter.await_insert(2, 0, always, who="b")
    now += 3.0
    assert not limiter.await_insert(1, 0, always, who="a")
    assert not limiter.await_insert(2, 0, always, who="b")
    assert not limiter.await_insert(2, 0, always)
    b, a = limiter.info().waiting
    assert (b.who, b.seconds, a.who, a.seconds) == ("b", 3.0, "a", 0.0)
    assert b.reason == limiter.why_no_insert(2)
    limiter.sampled(1)
    b, a = limiter.info().waiting
    assert "(4 inserted + 2) * 1 - 1 sampled" in b.reason, "the numbers as they are now"
    assert a.reason == "an insertion of 1 waits for its turn behind others"
    assert not limiter.await_insert(1, 0, always, who="a")
    limiter.sampled(1)
    assert limiter.info().waiting == (), "both may go on"
    assert limiter.await_insert(2, 0, always, who="b")
    limiter.inserted(2)
    (a,) = limiter.info().waiting
    assert a.who == "a", "who was let in does not wait"
    assert not limiter.await_insert(2, 0, always, who="b")
    assert limiter.info().waiting[1].seconds == 0.0
    limiter.stop_waiting("a")
    assert [wait.who for wait in limiter.info().waiting] == ["b"]


def test_a_large_sample_is_drawn_before_small_ones_that_came_later():
    limiter = RateLimiter(1.0, min_size=4, max_insert=1, max_sample=4)
    for _ in range(4):
        limiter.inserted(1)
    assert limiter.await_sample(4, 0, always)
    limiter.sampled(4)
    assert not limiter.await_sample(4, 0, always, who="large")
    for _ in range(3):
        limiter.inserted(1)
        assert not limiter.await_sample(4, 0, always, who="large")
        assert not limiter.await_sample(1, 0, always), "it would take what the large one waits for"
        assert limiter.await_insert(1, 0, always), "who inserts does not wait behind it"
    limiter.inserted(1)
    assert not limiter.await_sample(1, 0, always, who="small")
    assert [wait.who for wait in limiter.info().waiting] == [], "the first may go on, and the second after it"
    assert limiter.await_sample(4, 0, always, who="large")
    limiter.sampled(4)
    assert "a sample of 1 waits for insertions" in limiter.info().waiting[0].reason
    limiter.inserted(1)
    assert limiter.await_sample(1, 0, always, who="small")


def test_those_behind_one_that_leaves_go_on():
    changed = threading.Condition()
    limiter = RateLimiter(1.0, min_size=2, max_sample=8, changed=changed)
    for _ in range(2):
        limiter.inserted(1)
    while limiter.can_sample(2):
        limiter.sampled(1)
    drawn = []

    def sample() -> None:
        with changed:
            drawn.append(limiter.await_sample(1, 60, always))

    for leave in (
        lambda: limiter.await_sample(4, 60, lambda: False, who="first"),
        lambda: limiter.stop_waiting("first"),
    ):
        drawn.clear()
        assert not limiter.await_sample(4, 0, always, who="first")
        thread = threading.Thread(target=sample)
        thread.start()
        wait_until(lambda: len(limiter.info().waiting) == 2, "the second to wait behind the first")
        with changed:
            assert not limiter.await_sample(4, 0.01, always, who="first"), "it keeps its place"
        assert len(limiter.info().waiting) == 2
        leave()
        thread.join(DEADLINE_S)
        assert drawn == [True]


def test_wait_ends_at_its_deadline_or_when_caller_is_gone():
    limiter = RateLimiter(1.0, min_size=2, max_insert=2, max_sample=2)
    assert not limiter.await_sample(1, 0.01, always)
    assert not limiter.await_sample(1, 1000, lambda: False)
    assert not limiter.can_sample(1)
    limiter.inserted(2)
    limiter.inserted(2)
    assert not limiter.await_insert(2, 0.01, always)
    assert limiter.why_no_insert(2) == (
        "an insertion of 2 waits for 2 samples: (4 inserted + 2) * 1 - 0 sampled may not exceed 4"
    )
    info = limiter.info()
    assert (info.difference, info.min_diff, info.max_diff) == (4, 0, 4)
    limiter.reset()
    assert limiter.info().inserts == 0
    assert limiter.await_insert(2, 0, always)
