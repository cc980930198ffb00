import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.replay.sampling.prioritized import LowestPriority, Prioritized, as_priorities, check_priorities
from rollcast.services.errors import InvalidInputError

N_SLOTS = 50


def prioritized(
    alpha: float = 0.6, beta: float = 0.4, n_slots: int = N_SLOTS, epsilon: float = 1e-6, seed: int = 0
) -> Prioritized:
    return Prioritized(n_slots, np.random.default_rng(seed), alpha=alpha, beta=beta, epsilon=epsilon)


def test_draws_no_entry_beyond_its_remaining_draws():
    sampler = prioritized(alpha=1.0)
    sampler.insert(np.arange(6))
    sampler.update(np.arange(6), np.array([1000.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    left = np.array([2, 1, 1, 1, 1, 1], np.int32)
    assert np.bincount(sampler.sample(7, left.take)).tolist() == [2, 1, 1, 1, 1, 1]
    assert np.bincount(sampler.sample(1000))[0] > 900, "the tree is as it was"


def test_draws_uniformly_if_all_priorities_are_zero():
    sampler = prioritized()
    sampler.insert(np.arange(4))
    sampler.update(np.arange(4), np.zeros(4))
    assert np.bincount(sampler.sample(400), minlength=4).tolist() == [100] * 4
    assert sampler.weights(np.arange(4)).tolist() == [1.0] * 4
    left = np.ones(4, np.int32)
    assert sorted(sampler.sample(4, left.take).tolist()) == [0, 1, 2, 3]


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), alpha=st.floats(0.0, 1.0), beta=st.floats(0.0, 1.0))
def test_agrees_with_brute_force_twin(seed: int, alpha: float, beta: float):
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


def test_refuses_signalling_nan_like_any_nan():
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    with pytest.raises(InvalidInputError, match="is nan"):
        check_priorities(np.array([5]), as_priorities(signalling))


@pytest.mark.parametrize(("wrong", "text"), [(-0.5, "-0.5"), (np.nan, "nan"), (np.inf, "inf"), (1e101, "1e.101")])
def test_names_the_first_priority_out_of_range(wrong: float, text: str):
    with pytest.raises(InvalidInputError, match=rf"the priority at index 2 \(key 7\) is {text}; expected"):
        check_priorities(np.array([5, 6, 7, 8]), np.array([0.0, 1.0, wrong, -9.0]))


def test_refuses_more_priorities_than_keys():
    with pytest.raises(InvalidInputError, match=r"keys of shape \[2\] and priorities of shape \[3\]"):
        check_priorities(np.arange(2), np.ones(3))


def test_lowest_priority_finds_the_lowest_and_new_entries_last():
    sampler = LowestPriority(6)
    sampler.insert(np.arange(4))
    sampler.update(np.arange(4), np.array([3.0, 0.5, 9.0, 0.1]))
    sampler.insert(np.array([4]))
    assert sorted(sampler.sample(3).tolist()) == [0, 1, 3]
    sampler.remove(np.array([1, 3]))
    assert sampler.sample(1).tolist() == [0]
