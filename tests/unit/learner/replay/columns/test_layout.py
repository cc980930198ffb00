import dataclasses

import gymnasium
import numpy as np
import pytest

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.learner.replay.columns.frame_stacks import BEGINS
from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.columns.memory import ColumnMemory, Span, Write, host_array, write_rows
from rollcast.learner.replay.columns.steps import ENTRY, STEP, TRUNCATED, StepColumns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidRolloutError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces
from tests.batches import with_columns
from tests.played_rollouts import SPACES
from tests.unit.learner.replay.test_buffer import make_buffer, played


@pytest.mark.parametrize("field", ["reward", "observation", "action", "leaf", "substep", "final"])
def test_rejects_rollout_of_other_spaces_and_changes_nothing(field: str):
    buffer, rollout = make_buffer(), played()
    columns = rollout.substeps[FLAT_SUBSTEP]
    if field == "reward":
        wrong = dataclasses.replace(rollout, reward=rollout.reward[:-1])
    elif field == "substep":
        wrong = dataclasses.replace(rollout, substeps={"1": columns})
    else:
        changed = {
            "observation": {"observation": columns.observation | {"a": columns.observation["a"].astype(np.float64)}},
            "action": {"action": columns.action[..., None]},
            "leaf": {"observation": {"a": columns.observation["a"]}},
            "final": {"final_observation": {}},
        }[field]
        final_index = np.array([[0, 0]] if field == "final" else np.zeros((0, 2)), np.int32)
        wrong = with_columns(dataclasses.replace(rollout, final_index=final_index), **changed)
    with pytest.raises(InvalidRolloutError, match="rollout 1 of 'a' does not fit the replay buffer"):
        buffer.insert(wrong)
    assert buffer.size == 0


@pytest.mark.parametrize("frames", [None, 1, 3])
def test_rejects_rollout_without_the_frames_before_it(frames: int | None):
    buffer, rollout = make_buffer(frame_stack=3), played()
    columns = rollout.substeps[FLAT_SUBSTEP]
    previous = frames and {path: leaf[:frames].swapaxes(0, 1) for path, leaf in columns.observation.items()}
    with pytest.raises(InvalidRolloutError, match=r"0/observation/a before the first step is .* instead of .*2, 2, 2"):
        buffer.insert(with_columns(rollout, previous_observation=previous or None))
    assert buffer.size == 0


def test_stacks_have_their_own_layout():
    layout = make_layout(RolloutShape(SPACES, 4), log_prob=False)
    assert layout.stacked is layout
    stacked = make_layout(RolloutShape(SPACES, 4, frame_stack=3), log_prob=False).stacked
    assert [leaf.shape for leaf in stacked.substeps["0"].observation.values()] == [(3, 2), (3, 2, 3)]
    assert stacked.observation_bytes == 3 * layout.observation_bytes
    assert stacked.frame_stack == 1


@pytest.mark.parametrize(("log_prob", "expected"), [(False, 8 + 6 + 8), (True, 8 + 6 + 8 + 4)])
def test_step_bytes_are_the_sum_of_its_columns(log_prob: bool, expected: int):
    layout = make_layout(RolloutShape(SPACES, 4), log_prob=log_prob)
    assert layout.step_bytes.columns == expected
    assert layout.step_bytes.bookkeeping == 5, "a float32 reward and a byte of flags"
    assert layout.step_bytes.times(3).total == 3 * (expected + 5)


def test_samples_stay_valid_until_their_room_is_reused():
    buffer = make_buffer()
    buffer.insert(played())
    mine = buffer.make_ring(2, n_rooms=3)
    first = buffer.sample(2, ring=mine)
    kept = first.keys.copy()
    for _ in range(5):
        buffer.sample(2)
    for _ in range(2):
        buffer.sample(2, ring=mine)
    assert first.keys.tolist() == kept.tolist()
    assert buffer.sample(2, ring=mine).keys is first.keys


# Rows of a kilobyte are written one by one with those between them, rows of several not.
ROW_SHAPES = [(), (4,), (256, 4), (1025, 4)]


@pytest.mark.parametrize("shape", ROW_SHAPES)
def test_span_copies_values_from_its_source_steps(shape: tuple[int, ...]):
    rng = np.random.default_rng(0)
    values = rng.random((3, 2, *shape), np.float32)
    source = np.array([-1, 0, 2, 4, -1, -1, 1, 3, -1])
    column = np.zeros((12, *shape), np.float32)
    write_rows([column], Span(2, source), [values])
    for row, step in enumerate(source.tolist(), start=2):
        if step >= 0:
            np.testing.assert_array_equal(column[row], values[step // 2, step % 2])
    assert not column[:2].any()
    assert not column[11:].any()
    assert Span(2, source).rows(6).tolist() == [3, 8, 4, 9, 5, -1]


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
