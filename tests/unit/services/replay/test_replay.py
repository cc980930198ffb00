import dataclasses

import numpy as np

from rollcast.services.replay.replay import ReplayStatus, ReplayWaiting, joint_replay_status
from tests.unit.services.replay.example_batches import example_batch

STATUS = ReplayStatus(
    size=1,
    capacity=2,
    n_bytes=3,
    inserted=4,
    sampled=5,
    min_size=6,
    difference=0.5,
    min_diff=-1.0,
    max_diff=1.0,
    waiting=(ReplayWaiting(reason="too few entries", seconds=2.0, who="the trainer"),),
)


def test_entries_of_a_batch_are_views_of_it():
    batch = example_batch()
    some = batch.entries(1, 3)
    assert some.batch_size == 2
    assert np.shares_memory(some.reward, batch.reward)
    np.testing.assert_array_equal(some.keys, batch.keys[1:3])


def test_final_observations_are_counted_from_the_first_entry():
    batch = example_batch()
    some = batch.entries(1, batch.batch_size)
    wanted = batch.final_index[batch.final_index[:, 1] >= 1]
    np.testing.assert_array_equal(some.final_index, wanted - np.array([0, 1]))


def test_all_entries_are_the_batch_itself():
    batch = example_batch()
    assert batch.entries(0, batch.batch_size) is batch


def test_a_single_status_stays_as_it_is():
    assert joint_replay_status({"0": STATUS}) is STATUS


def test_statuses_add_up_and_waits_name_their_substep():
    other = dataclasses.replace(STATUS, size=10, waiting=())
    joint = joint_replay_status({"a": STATUS, "b": other})
    assert (joint.size, joint.capacity, joint.difference) == (11, 4, 1.0)
    assert [wait.reason for wait in joint.waiting] == ["a: too few entries"]
