import numpy as np
import pytest

from rollcast.learner.replay.columns.memory import ColumnMemory
from rollcast.learner.replay.columns.steps import ENTRY, STEP, TERMINATED
from rollcast.learner.replay.stores.n_step import fold_n_step
from tests.played_rollouts import World, check_transitions, folded, random_ends
from tests.unit.learner.replay.stores.test_trajectory_ring import RNG, ring


@pytest.mark.slow
@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("n_step", [1, 3, 10])
def test_folding_agrees_with_its_brute_force_twin_round_after_round(
    has_reset_rows: bool, n_step: int, frame_stack: int, memory: ColumnMemory
):
    world, known = World(n_steps=7, has_reset_rows=has_reset_rows, n_envs=3, frame_stack=frame_stack), {}
    ring_ = ring(7, 60, n_step, memory, frame_stack)
    stacks = world.stacks if frame_stack > 1 else None
    for _ in range(20):  # twice around the ring
        rollout, played = world.play(random_ends(RNG, 7, 3))
        known |= {step.observation: step for step in played}
        ring_.insert(rollout)
        room = ring_.make_room(ring_.size)
        sample = ring_.gather(ring_.entries(), room, RNG)
        check_transitions(sample, known, n_step, 0.9, stacks)
    assert folded(played[0], 1, 0.9)[1] == 1


def test_stops_at_invalid_rows_and_wraps_around_the_end():
    step = STEP | ENTRY
    flags = np.array([step, 0, step, step | TERMINATED, 0, step], np.uint8)
    reward = np.array([1, 0, 2, 4, 0, 8], np.float32)
    result = fold_n_step(np.array([2, 3, 5]), n_step=3, discount=0.5, reward=reward, flags=flags)
    assert result.reward.tolist() == [4.0, 4.0, 8.5]
    assert result.n_steps.tolist() == [2, 1, 2]
    assert result.last.tolist() == [3, 3, 0]
