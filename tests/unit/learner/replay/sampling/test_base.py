from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.replay.sampling.base import Sampler
from rollcast.learner.replay.sampling.insertion_order import Fifo, Lifo
from rollcast.learner.replay.sampling.prioritized import LowestPriority
from rollcast.learner.replay.sampling.uniform import Uniform
from rollcast.services.errors import NotReadyError
from tests.unit.learner.replay.sampling.test_prioritized import N_SLOTS, prioritized

KINDS: dict[str, Callable[[], Sampler]] = {
    "uniform": lambda: Uniform(N_SLOTS, np.random.default_rng(0)),
    "prioritized": prioritized,
    "fifo": lambda: Fifo(N_SLOTS),
    "lifo": lambda: Lifo(N_SLOTS),
    "lowest priority": lambda: LowestPriority(N_SLOTS),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10_000))
def test_draws_only_inserted_entries(kind: str, seed: int):
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


def test_rejects_sample_larger_than_its_content():
    for kind in (Fifo, Lifo):
        sampler = kind(N_SLOTS)
        sampler.insert(np.arange(3))
        with pytest.raises(NotReadyError, match="4 entries were asked of a sampler that has 3"):
            sampler.sample(4)


def test_closes_gaps_when_the_list_is_full():
    sampler = Fifo(4)
    sampler.insert(np.arange(4))
    for n in range(40):
        sampler.remove(np.array([n % 4]))
        sampler.insert(np.array([n % 4]))
        assert sampler.sample(4).tolist() == [(n + 1 + i) % 4 for i in range(4)]
