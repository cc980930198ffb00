import dataclasses

import numpy as np

from rollcast.learner.replay.columns.layout import STEPS, make_layout
from rollcast.learner.replay.columns.memory import Blocks, ColumnMemory, MainMemory, Write, write_rows
from rollcast.learner.replay.columns.steps import STEP, StepColumns, pack_flags
from rollcast.services.columns.shape import RolloutShape
from tests.played_rollouts import SPACES, TERMINATES, TRUNCATES, World

LAYOUT = make_layout(RolloutShape(SPACES, 3), log_prob=True)


def played(n_envs: int = 2):
    ends = np.zeros((3, n_envs), int)
    ends[0, 0], ends[1, 1] = TERMINATES, TRUNCATES
    return World(n_steps=3, has_reset_rows=False, n_envs=n_envs).play(ends)[0]


def test_flags_mark_episode_ends_and_invalid_rows():
    rollout = played()
    valid = np.ones((3, 2), bool)
    valid[2, 0] = False
    flags = pack_flags(dataclasses.replace(rollout, valid=valid))
    assert ((flags & STEP) != 0).tolist() == valid.tolist()
    columns = StepColumns(LAYOUT, MainMemory(), 6)
    columns.flags[:] = flags.reshape(-1)
    room = columns.make_room(n_steps=3, batch_size=2, discount=0.9)
    columns.gather_flags(np.arange(6), room)
    np.testing.assert_array_equal(room.sample.terminated, rollout.terminated & valid)
    np.testing.assert_array_equal(room.sample.truncated, rollout.truncated & valid)


def test_gathers_and_reads_the_rows_that_were_written(memory: ColumnMemory):
    rollout, columns = played(), StepColumns(LAYOUT, memory, 6)
    sources = LAYOUT.arrays(rollout, *STEPS)
    blocks = Blocks(6, 3, np.arange(2))
    memory.write([Write(columns.steps, blocks, sources)])
    write_rows((columns.reward,), blocks, (rollout.reward,))
    copied = columns.read(np.array([4, 1]))()
    for i, source in enumerate(sources):
        np.testing.assert_array_equal(copied[f"step{i}"], source[[1, 1], [1, 0]])
    np.testing.assert_array_equal(copied["reward"], rollout.reward[[1, 1], [1, 0]])
    other = StepColumns(LAYOUT, memory, 6)
    other.write(np.array([0, 5]), copied)
    again = other.read(np.array([0, 5]))()
    assert all(np.array_equal(again[name], copied[name]) for name in copied)


def test_observations_are_listed_in_the_order_of_the_columns():
    rollout = played()
    columns = StepColumns(LAYOUT, MainMemory(), 6)
    for which in ("observation", "last_observation", "final_observation"):
        sources = LAYOUT.arrays(rollout, which)
        assert [source.dtype for source in sources] == [column.dtype for column in columns.observations]
    assert len(LAYOUT.arrays(rollout, "final_observation")[0]) == len(rollout.final_index) == 2
