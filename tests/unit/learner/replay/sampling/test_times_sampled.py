import numpy as np

from rollcast.learner.replay.sampling.times_sampled import TimesSampled


def test_returns_entries_that_reached_their_draw_limit():
    times = TimesSampled(5, most=2)
    times.insert(np.arange(5))
    assert times.count(np.array([1, 3])).tolist() == []
    assert times.left(np.arange(5)).tolist() == [2, 1, 2, 1, 2]
    assert times.count(np.array([3, 4, 4])).tolist() == [3, 4]


def test_new_entry_in_a_slot_begins_with_count_zero():
    times = TimesSampled(2, most=1)
    assert times.count(np.array([0])).tolist() == [0]
    times.insert(np.array([0]))
    assert times.left(np.array([0])).tolist() == [1]


def test_restores_a_saved_state():
    times, other = TimesSampled(3, most=2), TimesSampled(3, most=2)
    times.count(np.array([2]))
    other.load_state(times.state())
    assert other.left(np.arange(3)).tolist() == [2, 2, 1]
