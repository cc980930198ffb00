import dataclasses
import tracemalloc

import numpy as np
import pytest

from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.columns.memory import ColumnMemory
from rollcast.learner.replay.stores.row_plan import acting_trajectories
from rollcast.learner.replay.stores.trajectory_ring import TrajectoryRing, ring_rows
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidRolloutError
from tests.played_rollouts import (
    SPACES,
    TERMINATES,
    TRUNCATES,
    World,
    check_transitions,
    on_host,
    random_ends,
)

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


def ring(
    n_steps: int, capacity: int, n_step: int = 1, memory: ColumnMemory | None = None, frame_stack: int = 1
) -> TrajectoryRing:
    layout = make_layout(RolloutShape(SPACES, n_steps, frame_stack=frame_stack), log_prob=False)
    return TrajectoryRing(layout, capacity, n_step=n_step, discount=0.9, memory=memory)


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


@pytest.mark.parametrize("frame_stack", [1, 5])
def test_the_oldest_leave_first_and_the_capacity_is_reached_when_episodes_are_long(
    memory: ColumnMemory, frame_stack: int
):
    world, steps = World(n_steps=32, has_reset_rows=False, frame_stack=frame_stack), []
    ring_ = ring(32, 200, memory=memory, frame_stack=frame_stack)
    for _ in range(30):
        rollout, played = world.play(np.zeros((32, 2), np.int64))
        steps += played
        change = ring_.insert(rollout)
        assert len(change.inserted) == 64
        assert ring_.size == min(len(steps), 200)
        sample = ring_.gather(ring_.entries(), ring_.make_room(ring_.size), RNG)
        numbers = on_host(sample).substeps["0"].observation["a"].reshape(ring_.size, frame_stack, 2)[:, -1, 0]
        assert numbers.tolist() == [step.observation for step in steps[-ring_.size :]]


@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("n_steps", [1, 2, 5])
def test_a_ring_full_of_episode_ends_still_holds_half_its_capacity(has_reset_rows: bool, n_steps: int):
    world, ring_ = World(n_steps=n_steps, has_reset_rows=has_reset_rows), ring(n_steps, 40)
    for _ in range(60):
        ring_.insert(world.play(np.full((n_steps, 2), TRUNCATES))[0])
    assert 20 <= ring_.size <= 40


@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("n_steps", [1, 2, 3, 4, 5])
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


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_no_slot_outside_the_span_is_an_entry(frame_stack: int):
    world = World(n_steps=4, has_reset_rows=False, frame_stack=frame_stack)
    ring_ = ring(4, 20, frame_stack=frame_stack)
    every = np.arange(ring_.n_slots)
    for lap in range(20):
        ring_.insert(world.play(random_ends(RNG, 4, 2))[0])
        if lap == 9:
            ring_.clear()
            assert not ring_.is_entry(every).any()
            continue
        first, n_rows = ring_.span
        inside = (every - first) % ring_.n_slots < n_rows
        assert np.count_nonzero(ring_.is_entry(every)) == ring_.size
        assert not ring_.is_entry(every[~inside]).any()


def test_keys_are_never_reused():
    world, ring_, seen = World(n_steps=4, has_reset_rows=False), ring(4, 10), set()
    for lap in range(20):
        change = ring_.insert(world.play(random_ends(RNG, 4, 2))[0])
        slots = change.inserted
        keys = ring_.gather(slots, ring_.make_room(len(slots)), RNG).keys
        assert not seen & set(keys.tolist())
        found, is_there = ring_.find(keys)
        assert is_there.all()
        np.testing.assert_array_equal(found, slots)
        assert not ring_.find(np.array(sorted(seen), np.int64)[: 4 * lap])[1][: len(seen) - 16].any()
        seen |= set(keys.tolist())
        if lap == 10:
            ring_.clear()
            assert not ring_.find(keys)[1].any()


def test_rejects_missing_final_observation_and_changes_nothing():
    ends = np.zeros((4, 2), np.int64)
    ends[1, 1] = TERMINATES
    rollout, _ = World(n_steps=4, has_reset_rows=False).play(ends)
    ring_ = ring(4, 10)
    with pytest.raises(InvalidRolloutError, match="the episode of environment 1 ended at step 1, and neither"):
        ring_.insert(dataclasses.replace(rollout, final_index=np.zeros((0, 2), np.int32)))
    assert ring_.size == 0
    assert ring_.span == (0, 0)


def test_removed_entry_remains_next_observation_of_others(memory: ColumnMemory):
    world, known = World(n_steps=6, has_reset_rows=False, n_envs=1), {}
    ring_ = ring(6, 12, 3, memory)
    rollout, played = world.play(np.zeros((6, 1), np.int64))
    known = {step.observation: step for step in played}
    slots = ring_.insert(rollout).inserted
    ring_.remove(slots[1::2])
    assert ring_.size == 3
    np.testing.assert_array_equal(ring_.entries(), slots[::2])
    check_transitions(ring_.gather(ring_.entries(), ring_.make_room(3), RNG), known, 3)
