import dataclasses

import gymnasium
import numpy as np
import pytest

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.learner.replay.columns.frame_stacks import BEGINS, flag_beginnings, rows_of_stacks
from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.columns.memory import ColumnMemory, Write, host_array
from rollcast.learner.replay.columns.steps import ENTRY, STEP, TRUNCATED, StepColumns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces
from tests.played_rollouts import SPACES, TERMINATES, TRUNCATES, World
from tests.rollouts import make_rollout

K = 3
MASKED: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(
        observation=gymnasium.spaces.Dict(
            [
                ("seen", gymnasium.spaces.Box(-9, 9, (2,), np.float32)),
                (ACTION_MASK, gymnasium.spaces.MultiBinary(4)),
                ("token", gymnasium.spaces.Discrete(100)),
            ]
        ),
        action=gymnasium.spaces.Discrete(4),
    )
}


@pytest.mark.parametrize("seed", range(20))
def test_rows_agree_with_a_plain_walk(seed: int):
    rng = np.random.default_rng(seed)
    n_rows, k = int(rng.integers(5, 30)), int(rng.integers(2, 6))
    flags = np.where(rng.random(n_rows) < 0.3, BEGINS | STEP, STEP | TRUNCATED).astype(np.uint8)
    rows = rng.integers(0, n_rows + 1, 50)
    expected = []
    for row in rows % n_rows:
        stack = [int(row)]
        while len(stack) < k:
            stack.append(stack[-1] if flags[stack[-1]] & BEGINS else (stack[-1] - 1) % n_rows)
        expected.append(stack[::-1])
    assert rows_of_stacks(rows, flags, k).tolist() == expected


def test_episodes_begin_after_ends_and_invalid_rows_but_not_in_the_first_transition():
    ends = np.zeros((4, 3), bool)
    ends[1, 0] = ends[3, 0] = ends[0, 1] = True
    valid = np.ones((4, 3), bool)
    valid[1, 1] = valid[:2, 2] = False  # a reset row; rows before an agent acted
    rollout = make_rollout(n_steps=4, n_envs=3, terminated=ends, valid=None)
    assert np.argwhere(flag_beginnings(rollout)).tolist() == [[1, 1], [2, 0]]
    rollout = dataclasses.replace(rollout, valid=valid)
    assert np.argwhere(flag_beginnings(rollout)).tolist() == [[2, 0], [2, 1]]
    assert set(flag_beginnings(rollout).reshape(-1).tolist()) == {0, BEGINS}


def test_previous_frames_are_listed_in_the_order_of_the_columns():
    layout = make_layout(RolloutShape(SPACES, 4, frame_stack=K), log_prob=False)
    ends = np.array([[0, 0], [TERMINATES, 0], [0, TRUNCATES], [0, 0]])
    world = World(n_steps=4, has_reset_rows=False, frame_stack=K)
    world.play(ends)
    rollout, _ = world.play(ends)
    layout.check(rollout)
    frames = layout.arrays(rollout, "previous_observation")
    assert [(leaf.dtype, leaf.shape) for leaf in frames] == [(np.float32, (2, 2, 2)), (np.uint8, (2, 2, 2, 3))]
    first = rollout.substeps[FLAT_SUBSTEP].observation["a"][0, :, 0]
    # two steps before; one step before, in which an episode began
    assert frames[0][:, :, 0].tolist() == [list(world.stacks[int(number)][:-1]) for number in first]


def test_stacks_are_gathered_and_the_mask_is_that_of_the_newest_frame(memory: ColumnMemory):
    layout = make_layout(RolloutShape(MASKED, 4, frame_stack=K), log_prob=False)
    columns = StepColumns(layout, memory, 8)
    number = np.arange(8)
    values = {
        "seen": np.stack([number, -number], 1).astype(np.float32),
        ACTION_MASK: (number[:, None] >> np.arange(4) & 1).astype(np.int8),
        "token": number * 10,
    }
    paths = list(layout.substeps[FLAT_SUBSTEP].observation)
    memory.write([Write(columns.steps, number, [*(values[path] for path in paths), number % 4])])
    columns.flags[:] = STEP | ENTRY
    columns.flags[[3, 5]] |= BEGINS | TRUNCATED
    room = columns.make_room(n_steps=1, batch_size=3, discount=0.9)
    rows = np.array([0, 4, 7])
    columns.gather(rows + 1, rows, room)
    (sampled,) = room.sample.substeps.values()
    stacks, following = [[6, 7, 0], [3, 3, 4], [5, 6, 7]], [[7, 0, 1], [5, 5, 5], [6, 7, 0]]
    for path in ("seen", "token"):
        np.testing.assert_array_equal(host_array(sampled.observation[path])[0], values[path][np.array(stacks)])
        np.testing.assert_array_equal(host_array(sampled.next_observation[path]), values[path][np.array(following)])
    np.testing.assert_array_equal(host_array(sampled.observation[ACTION_MASK])[0], values[ACTION_MASK][rows])
    np.testing.assert_array_equal(
        host_array(sampled.next_observation[ACTION_MASK]), values[ACTION_MASK][(rows + 1) % 8]
    )
    np.testing.assert_array_equal(host_array(sampled.action)[0], rows % 4)
    columns.gather(rows + 1, np.array([3, 4, 5]), room)
    assert room.sample.truncated.tolist() == [[True, False, True]], "a beginning is no end"
