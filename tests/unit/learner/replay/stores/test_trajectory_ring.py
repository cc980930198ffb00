import dataclasses
import tracemalloc

import numpy as np
import pytest

from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.columns.steps import ENTRY, STEP, TERMINATED
from rollcast.learner.replay.stores.n_step import fold_n_step
from rollcast.learner.replay.stores.row_plan import acting_trajectories
from rollcast.learner.replay.stores.trajectory_ring import TrajectoryRing, ring_rows
from rollcast.learner.replay.stores.transitions import transition_bytes
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidRolloutError
from tests.played_rollouts import (
    SPACES,
    TERMINATES,
    World,
    random_ends,
)

pytestmark = pytest.mark.slow


def ring(n_steps: int, capacity: int, frame_stack: int = 1) -> TrajectoryRing:
    layout = make_layout(RolloutShape(SPACES, n_steps, frame_stack=frame_stack), log_prob=False)
    return TrajectoryRing(layout, capacity, discount=0.9)


@pytest.mark.parametrize("n_steps", [16, 17, 32, 100, 1000])
@pytest.mark.parametrize("capacity", [1000, 12345, 1_000_000])
def test_a_transition_costs_at_most_a_tenth_more_than_its_arrays(n_steps: int, capacity: int):
    assert ring_rows(capacity, n_steps) <= 1.1 * max(capacity, 2 * n_steps)


@pytest.mark.parametrize("frame_stack", [1, 4])
def test_ring_allocates_the_computed_bytes(frame_stack: int):
    ring(20, 100, frame_stack=frame_stack)  # fills the caches of what it calls
    tracemalloc.start()
    ring_ = ring(20, 10_000, frame_stack=frame_stack)
    n_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    layout = make_layout(RolloutShape(SPACES, 20, frame_stack=frame_stack), log_prob=False)
    assert n_bytes == pytest.approx(layout.step_bytes.times(ring_.n_slots).total, rel=0.02)


@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("n_steps", [1, 2, 5])
@pytest.mark.parametrize("frame_stack", [1, 4])
def test_holds_a_batch_as_large_as_its_capacity_however_short_episodes_are(
    frame_stack: int, n_steps: int, has_reset_rows: bool
):
    rng = np.random.default_rng(n_steps)
    layout = make_layout(RolloutShape(SPACES, n_steps, frame_stack=frame_stack), log_prob=False)
    for probability in (1.0, 0.5):
        world = World(n_steps=n_steps, has_reset_rows=has_reset_rows, n_envs=1, frame_stack=frame_stack)
        ring_, inserted = TrajectoryRing(layout, 40, batch_size=40), 0
        for _ in range(200):
            rollout = acting_trajectories(world.play(random_ends(rng, n_steps, 1, probability))[0])
            inserted += ring_.n_entries(rollout)
            if ring_.n_entries(rollout):
                ring_.insert(rollout)
            assert ring_.size >= min(inserted, 40)


def test_rejects_missing_final_observation_and_changes_nothing():
    ends = np.zeros((4, 2), np.int64)
    ends[1, 1] = TERMINATES
    rollout, _ = World(n_steps=4, has_reset_rows=False).play(ends)
    ring_ = ring(4, 10)
    with pytest.raises(InvalidRolloutError, match="the episode of environment 1 ended at step 1, and neither"):
        ring_.insert(dataclasses.replace(rollout, final_index=np.zeros((0, 2), np.int32)))
    assert ring_.size == 0
    assert ring_.span == (0, 0)


def test_a_cleared_ring_has_no_entries():
    rollout, _ = World(n_steps=4, has_reset_rows=False).play(random_ends(np.random.default_rng(0), 4, 2))
    ring_ = ring(4, 10)
    assert ring_.insert(rollout)
    every = np.arange(ring_.n_slots)
    assert np.count_nonzero(ring_.is_entry(every)) == ring_.size
    ring_.clear()
    assert not ring_.is_entry(every).any()


LAYOUT = make_layout(RolloutShape(SPACES, 5), log_prob=False)


def test_takes_twice_the_bytes_of_a_ring():
    ring = TrajectoryRing(LAYOUT, 40)
    assert transition_bytes(LAYOUT).total < 2 * ring.row_bytes
    assert transition_bytes(LAYOUT).columns == LAYOUT.step_bytes.columns + LAYOUT.observation_bytes


def test_stacks_take_their_bytes():
    stacked = transition_bytes(make_layout(RolloutShape(SPACES, 5, frame_stack=4), log_prob=False))
    assert stacked.columns == transition_bytes(LAYOUT).columns + 2 * 3 * LAYOUT.observation_bytes


def test_stops_at_invalid_rows_and_wraps_around_the_end():
    step = STEP | ENTRY
    flags = np.array([step, 0, step, step | TERMINATED, 0, step], np.uint8)
    reward = np.array([1, 0, 2, 4, 0, 8], np.float32)
    result = fold_n_step(np.array([2, 3, 5]), n_step=3, discount=0.5, reward=reward, flags=flags)
    assert result.reward.tolist() == [4.0, 4.0, 8.5]
    assert result.n_steps.tolist() == [2, 1, 2]
    assert result.last.tolist() == [3, 3, 0]
