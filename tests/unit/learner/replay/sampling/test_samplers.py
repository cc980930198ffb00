from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.sampling.base import Sampler
from rollcast.learner.replay.sampling.insertion_order import Fifo, Lifo
from rollcast.learner.replay.sampling.prioritized import LowestPriority, Prioritized, as_priorities, check_priorities
from rollcast.learner.replay.sampling.uniform import Uniform, UniformRows
from rollcast.services.errors import InvalidInputError, NotReadyError

N_SLOTS = 50


def prioritized(
    alpha: float = 0.6, beta: float = 0.4, n_slots: int = N_SLOTS, epsilon: float = 1e-6, seed: int = 0
) -> Prioritized:
    return Prioritized(n_slots, np.random.default_rng(seed), alpha=alpha, beta=beta, epsilon=epsilon)


KINDS: dict[str, Callable[[], Sampler]] = {
    "uniform": lambda: Uniform(N_SLOTS, np.random.default_rng(0)),
    "prioritized": prioritized,
    "fifo": lambda: Fifo(N_SLOTS),
    "lifo": lambda: Lifo(N_SLOTS),
    "lowest priority": lambda: LowestPriority(N_SLOTS),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(seed=st.integers(0, 10_000))
def test_draws_only_what_is_in(kind: str, seed: int):
    rng, sampler = np.random.default_rng(seed), KINDS[kind]()
    inside: list[int] = []
    for _ in range(12):
        outside = np.setdiff1d(np.arange(N_SLOTS), inside)
        coming = rng.permutation(outside)[: rng.integers(0, len(outside) + 1)]
        sampler.insert(coming)
        inside += coming.tolist()
        going = rng.permutation(inside)[: rng.integers(0, len(inside) + 1)].astype(np.int64)
        sampler.remove(going)
        inside = [slot for slot in inside if slot not in set(going.tolist())]
        if not inside:
            continue
        sampler.update(np.array(inside), rng.random(len(inside)) + 0.1)
        drawn = sampler.sample(int(rng.integers(1, len(inside) + 1)))
        assert set(drawn.tolist()) <= set(inside)
        if kind != "prioritized":
            assert len(np.unique(drawn)) == len(drawn)
        if kind == "fifo":
            assert drawn.tolist() == inside[: len(drawn)]
        if kind == "lifo":
            assert drawn.tolist() == inside[::-1][: len(drawn)]
    sampler.clear()
    sampler.insert(np.array([3]))
    assert sampler.sample(1).tolist() == [3]


class Rows:
    """A ring of 100 rows in which every third is no entry, and which begins at row 70."""

    size = 66
    span = (70, 99)

    def is_entry(self, slots: Slots) -> np.ndarray:
        return (slots % 100) % 3 != 0

    def entries(self) -> Slots:
        rows = np.arange(70, 169) % 100
        return rows[self.is_entry(rows)]


def chi_square(counts: np.ndarray) -> float:
    """In standard deviations above what it is on average."""
    expected = counts.mean()
    degrees = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / (2 * degrees) ** 0.5)


@pytest.mark.parametrize("n", [1, 5, 20, 50])
def test_uniform_passes_a_chi_square_test_over_rows_and_over_slots(n: int):
    rows, slots = Rows(), Uniform(100, np.random.default_rng(1))
    assert len(rows.entries()) == rows.size
    slots.insert(rows.entries())
    for sampler in (UniformRows(rows, 100, np.random.default_rng(2)), slots):
        counts = np.zeros(100)
        for _ in range(20_000 // n):
            drawn = sampler.sample(n)
            assert len(np.unique(drawn)) == len(drawn) == n, "no entry twice in a batch"
            counts[drawn] += 1
        assert counts.sum() == 20_000 // n * n
        assert np.flatnonzero(counts).tolist() == np.sort(rows.entries()).tolist()
        # Without replacement the spread is smaller than chi-square's: a bound from above is right for any n.
        assert chi_square(counts[rows.entries()]) < 4


def test_prioritized_matches_its_distribution_and_weights():
    sampler = prioritized(alpha=0.7, beta=0.5, n_slots=20)
    priorities = np.linspace(0.0, 5.0, 20)
    sampler.insert(np.arange(20))
    sampler.update(np.arange(20), priorities)
    probability = priorities**0.7 / (priorities**0.7).sum()
    counts = sum(np.bincount(sampler.sample(64), minlength=20) for _ in range(1000))
    np.testing.assert_allclose(counts / 64_000, probability, atol=2e-3)
    slots = np.array([3, 19, 3, 7])
    weights = (20 * probability[slots]) ** -0.5
    np.testing.assert_allclose(sampler.weights(slots), weights / weights.max(), rtol=1e-6)


def test_a_new_entry_gets_the_largest_priority_so_far():
    sampler = prioritized(alpha=1.0)
    sampler.insert(np.array([0, 1]))
    sampler.update(np.array([0, 1]), np.array([8.0, 2.0]))
    sampler.update(np.array([0]), np.array([0.0]))
    sampler.insert(np.array([2]))
    counts = np.bincount(sampler.sample(1000), minlength=3)
    np.testing.assert_allclose(counts, [0, 200, 800], atol=1)


def test_prioritized_with_draws_left_takes_nobody_too_often():
    sampler = prioritized(alpha=1.0)
    sampler.insert(np.arange(6))
    sampler.update(np.arange(6), np.array([1000.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    left = np.array([2, 1, 1, 1, 1, 1], np.int32)
    assert np.bincount(sampler.sample(7, left.take)).tolist() == [2, 1, 1, 1, 1, 1]
    assert np.bincount(sampler.sample(1000))[0] > 900, "the tree is as it was"


def test_only_zero_priorities_are_drawn_uniformly():
    sampler = prioritized()
    sampler.insert(np.arange(4))
    sampler.update(np.arange(4), np.zeros(4))
    assert np.bincount(sampler.sample(400), minlength=4).tolist() == [100] * 4
    assert sampler.weights(np.arange(4)).tolist() == [1.0] * 4
    left = np.ones(4, np.int32)
    assert sorted(sampler.sample(4, left.take).tolist()) == [0, 1, 2, 3]


def test_priority_of_zero_is_drawn_as_often_as_epsilon_says():
    sampler = prioritized(alpha=1.0, epsilon=0.5)
    sampler.insert(np.arange(3))
    sampler.update(np.arange(3), np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(np.bincount(sampler.sample(9000), minlength=3), [1000, 3000, 5000], atol=2)


def test_sampling_without_any_priority_is_an_error():
    with pytest.raises(NotReadyError, match="sum of all priorities"):
        prioritized().sample(1)


def test_oldest_first_does_not_search_for_ever_for_entries_that_are_not_there():
    for kind in (Fifo, Lifo):
        sampler = kind(N_SLOTS)
        sampler.insert(np.arange(3))
        with pytest.raises(NotReadyError, match="4 entries were asked of a sampler that has 3"):
            sampler.sample(4)


class SparseRows:
    """A ring whose rows are entries only at the 20 that the random draws do not find."""

    size = 20
    span = (0, 1_000_000)

    def is_entry(self, slots: Slots) -> np.ndarray:
        return np.zeros(len(slots), np.bool_)

    def entries(self) -> Slots:
        return np.arange(20)


def test_rows_that_random_draws_do_not_find_are_looked_up():
    drawn = UniformRows(SparseRows(), 1_000_000, np.random.default_rng(0)).sample(5)
    assert len(set(drawn.tolist())) == 5
    assert set(drawn.tolist()) <= set(range(20))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), alpha=st.floats(0.0, 1.0), beta=st.floats(0.0, 1.0))
def test_prioritized_agrees_with_its_brute_force_twin(seed: int, alpha: float, beta: float):
    """Equation 1 and section 3.4 of the paper, over random insertions, updates and removals, zeros among them."""
    rng, epsilon = np.random.default_rng(seed), 10.0 ** np.random.default_rng(seed).integers(-6, 1)
    sampler = prioritized(alpha, beta, epsilon=epsilon, seed=seed)
    p: dict[int, float] = {}
    largest = 1.0
    for _ in range(8):
        outside = np.setdiff1d(np.arange(N_SLOTS), list(p))
        coming = rng.permutation(outside)[: rng.integers(1, 8)].astype(np.int64)
        sampler.insert(coming)
        p |= dict.fromkeys(coming.tolist(), largest)
        changed = rng.choice(list(p), int(rng.integers(1, 12)))  # some of them twice
        errors = rng.choice([0.0, 1e-9, 0.3, 4.0, 50.0], len(changed))
        sampler.update(changed, errors)
        for slot, error in zip(changed.tolist(), errors.tolist(), strict=True):
            p[slot] = (error + epsilon) ** alpha
            largest = max(largest, p[slot])
        going = rng.permutation(list(p))[: rng.integers(0, len(p))].astype(np.int64)
        sampler.remove(going)
        for slot in going.tolist():
            del p[slot]
        n = int(rng.integers(1, 200))
        slots = sampler.sample(n)
        total = sum(p.values())
        drawn = np.bincount(slots, minlength=N_SLOTS)
        for slot in range(N_SLOTS):  # stratified: each of the n parts of the total has one draw
            expected = n * p.get(slot, 0.0) / total
            assert expected - 2 - 1e-6 < drawn[slot] < expected + 2 + 1e-6
            assert drawn[slot] == 0 or slot in p
        weight = np.array([(len(p) * p[slot] / total) ** -beta for slot in slots.tolist()])
        np.testing.assert_allclose(sampler.weights(slots), weight / weight.max(), rtol=1e-5)


def test_a_signalling_nan_is_one_that_is_refused_like_others():
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    with pytest.raises(InvalidInputError, match="is nan"):
        check_priorities(np.array([5]), as_priorities(signalling))


@pytest.mark.parametrize(("wrong", "text"), [(-0.5, "-0.5"), (np.nan, "nan"), (np.inf, "inf"), (1e101, "1e.101")])
def test_priorities_that_cannot_be_right_are_named(wrong: float, text: str):
    with pytest.raises(InvalidInputError, match=rf"the priority at index 2 \(key 7\) is {text}; expected"):
        check_priorities(np.array([5, 6, 7, 8]), np.array([0.0, 1.0, wrong, -9.0]))


def test_as_many_priorities_as_keys_are_expected():
    with pytest.raises(InvalidInputError, match=r"keys of shape \[2\] and priorities of shape \[3\]"):
        check_priorities(np.arange(2), np.ones(3))
