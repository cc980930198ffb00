import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.replay.sampling.trees import MinTree, SumTree
from rollcast.services.errors import NotReadyError

CAPACITIES = [1, 2, 15, 16, 17, 255, 257, 5000]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_find_is_the_inverse_of_the_cumulative_sum(capacity: int):
    rng = np.random.default_rng(capacity)
    tree, leaves = SumTree(capacity), rng.integers(0, 4, capacity).astype(np.float64)
    leaves[rng.integers(capacity)] = 3.0
    tree.set(np.arange(capacity), leaves)
    prefix_sums = np.arange(leaves.sum())
    expected = np.searchsorted(np.cumsum(leaves), prefix_sums, side="right")
    np.testing.assert_array_equal(tree.find(prefix_sums), expected)
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), leaves)
    assert tree.total == leaves.sum()


@pytest.mark.parametrize("n_sets", [2, 20, 400], ids=["few", "some", "more than there are nodes"])
@pytest.mark.parametrize("capacity", [17, 5000, 40_000])
def test_reading_after_many_updates_equals_reading_after_each(capacity: int, n_sets: int):
    rng = np.random.default_rng(capacity)
    often, seldom, leaves = SumTree(capacity), SumTree(capacity), np.zeros(capacity)
    smallest = MinTree(capacity)
    for _ in range(n_sets):
        first, n = rng.integers(capacity), rng.integers(1, 200)
        indices = np.concatenate([np.arange(first, first + n) % capacity, rng.integers(0, capacity, 8)])
        values = rng.integers(1, 9, len(indices)).astype(np.float64)
        for tree in (often, seldom, smallest):
            tree.set(indices, values)
        leaves[indices] = values
        assert often.total == leaves.sum()
    assert seldom.total == leaves.sum()
    prefix_sums = np.linspace(0, leaves.sum(), 100, endpoint=False)
    np.testing.assert_array_equal(seldom.find(prefix_sums), often.find(prefix_sums))
    np.testing.assert_array_equal(np.sort(smallest.get(smallest.smallest(5))), np.sort(leaves[leaves > 0])[:5])


def test_a_cleared_tree_forgets_updates_that_were_never_read():
    tree = SumTree(1000)
    tree.set(np.arange(300), np.ones(300))
    tree.clear()
    assert tree.total == 0.0
    tree.set(np.array([7]), np.array([2.0]))
    assert tree.total == 2.0
    assert tree.find(np.array([1.0])).tolist() == [7]


def test_total_does_not_drift_when_large_and_small_values_alternate():
    tree, rng = SumTree(1000), np.random.default_rng(0)
    for _ in range(300):
        indices = rng.integers(0, 1000, 64)
        tree.set(indices, rng.random(64) * 10.0 ** rng.integers(-12, 12, 64))
    tree.set(np.arange(1000), np.full(1000, 0.5))
    assert tree.total == 500.0


def test_never_draws_a_zero_leaf_even_if_rounding_reaches_the_total():
    rng = np.random.default_rng(1)
    leaves = np.where(rng.random(3000) < 0.5, 0.0, rng.random(3000) * 10.0 ** rng.integers(-9, 9, 3000))
    tree = SumTree(3000)
    tree.set(np.arange(3000), leaves)
    drawn = np.concatenate([tree.sample(rng, 512) for _ in range(50)])
    assert (leaves[drawn] > 0).all()
    assert leaves[tree.find(np.array([tree.total, np.nextafter(tree.total, 0), 0.0]))].min() > 0


def test_rejects_drawing_from_a_zero_total():
    with pytest.raises(NotReadyError, match=r"sum of all priorities is 0.0.*draw 3 entries"):
        SumTree(10).sample(np.random.default_rng(0), 3)


@given(st.integers(1, 700), st.data())
def test_smallest_are_the_k_smallest(capacity: int, data: st.DataObject):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    tree = MinTree(capacity)
    n_set = data.draw(st.integers(1, capacity))
    indices = rng.permutation(capacity)[:n_set]
    values = rng.integers(0, 50, n_set).astype(np.float64)
    tree.set(indices, values)
    k = data.draw(st.integers(1, n_set))
    found = tree.smallest(k)
    assert len(np.unique(found)) == k
    np.testing.assert_array_equal(np.sort(tree.get(found)), np.sort(values)[:k])
    tree.set(found, np.full(len(found), np.inf))
    if k < n_set:
        assert not set(tree.smallest(1)) & set(found)
