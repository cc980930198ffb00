from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.replay.sampling.base import Sampler
from rollcast.learner.replay.sampling.insertion_order import Fifo, Lifo
from rollcast.learner.replay.sampling.prioritized import LowestPriority, Prioritized
from rollcast.learner.replay.sampling.uniform import Uniform

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
