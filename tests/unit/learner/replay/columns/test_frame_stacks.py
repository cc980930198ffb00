import gymnasium
import numpy as np

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.learner.replay.columns.frame_stacks import BEGINS
from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.columns.memory import ColumnMemory, Write, host_array
from rollcast.learner.replay.columns.steps import ENTRY, STEP, TRUNCATED, StepColumns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces

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
