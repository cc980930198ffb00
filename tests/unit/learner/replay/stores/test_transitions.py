import numpy as np
import pytest

from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.columns.memory import ColumnMemory
from rollcast.learner.replay.sampling.prioritized import LowestPriority
from rollcast.learner.replay.stores.trajectory_ring import TrajectoryRing
from rollcast.learner.replay.stores.transitions import TransitionStore, transition_bytes
from rollcast.services.columns.shape import RolloutShape
from tests.played_rollouts import SPACES, World, check_transitions, random_ends

RNG = np.random.default_rng(0)
T = 5
LAYOUT = make_layout(RolloutShape(SPACES, T), log_prob=False)


@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize(("n_step", "frame_stack"), [(1, 1), (3, 1), (1, 4), (3, 2)])
def test_every_transition_keeps_its_own_next_observation(
    has_reset_rows: bool, n_step: int, frame_stack: int, memory: ColumnMemory
):
    layout = make_layout(RolloutShape(SPACES, T, frame_stack=frame_stack), log_prob=False)
    store = TransitionStore(layout, 40, LowestPriority(40), n_step=n_step, discount=0.9, memory=memory)
    world, known, inside = World(T, has_reset_rows=has_reset_rows, n_envs=3, frame_stack=frame_stack), {}, set()
    stacks = world.stacks if frame_stack > 1 else None
    for _ in range(12):
        rollout, played = world.play(random_ends(RNG, T, 3))
        known |= {step.observation: step for step in played}
        change = store.insert(rollout)
        inside = (inside - set(change.removed.tolist())) | set(change.inserted.tolist())
        slots = np.array(sorted(inside))
        assert len(slots) == store.size
        check_transitions(store.gather(slots, store.make_room(len(slots)), RNG), known, n_step, 0.9, stacks)
        store.update_priorities(slots, RNG.random(len(slots)))
    assert store.size == 40


def test_takes_twice_the_bytes_of_a_ring():
    ring = TrajectoryRing(LAYOUT, 40)
    assert transition_bytes(LAYOUT).total < 2 * ring.row_bytes
    assert transition_bytes(LAYOUT).columns == LAYOUT.step_bytes.columns + LAYOUT.observation_bytes


def test_stacks_take_their_bytes():
    stacked = transition_bytes(make_layout(RolloutShape(SPACES, T, frame_stack=4), log_prob=False))
    assert stacked.columns == transition_bytes(LAYOUT).columns + 2 * 3 * LAYOUT.observation_bytes
