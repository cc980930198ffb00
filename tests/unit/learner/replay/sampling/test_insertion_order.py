import numpy as np
import pytest

from rollcast.learner.replay.sampling.insertion_order import Fifo, Lifo
from rollcast.services.errors import NotReadyError

N_SLOTS = 50


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
