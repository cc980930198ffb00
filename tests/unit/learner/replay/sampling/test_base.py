import numpy as np
import pytest

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.sampling.insertion_order import Fifo, Lifo
from rollcast.learner.replay.sampling.uniform import Uniform, UniformRows
from rollcast.services.errors import NotReadyError
from tests.unit.learner.replay.sampling.test_prioritized import N_SLOTS


def test_rejects_sample_larger_than_its_content():
    for kind in (Fifo, Lifo):
        sampler = kind(N_SLOTS)
        sampler.insert(np.arange(3))
        with pytest.raises(NotReadyError, match="4 entries were requested from a sampler that has 3"):
            sampler.sample(4)


def test_closes_gaps_when_the_list_is_full():
    sampler = Fifo(4)
    sampler.insert(np.arange(4))
    for n in range(40):
        sampler.remove(np.array([n % 4]))
        sampler.insert(np.array([n % 4]))
        assert sampler.sample(4).tolist() == [(n + 1 + i) % 4 for i in range(4)]


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


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 20])
def test_passes_chi_square_test_over_rows_and_over_slots(n: int):
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


class SparseRows:
    """A ring whose rows are entries only at the 20 that the random draws do not find."""

    size = 20
    span = (0, 1_000_000)

    def is_entry(self, slots: Slots) -> np.ndarray:
        return np.zeros(len(slots), np.bool_)

    def entries(self) -> Slots:
        return np.arange(20)


def test_looks_up_rows_that_random_draws_do_not_find():
    drawn = UniformRows(SparseRows(), 1_000_000, np.random.default_rng(0)).sample(5)
    assert len(set(drawn.tolist())) == 5
    assert set(drawn.tolist()) <= set(range(20))
