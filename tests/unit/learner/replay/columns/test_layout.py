import dataclasses

import numpy as np
import pytest

from rollcast.learner.replay.columns.layout import make_layout
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidRolloutError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
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
        wrong = dataclasses.replace(
            rollout,
            substeps={FLAT_SUBSTEP: dataclasses.replace(columns, **changed)},
            final_index=np.array([[0, 0]] if field == "final" else np.zeros((0, 2)), np.int32),
        )
    with pytest.raises(InvalidRolloutError, match="rollout 1 of 'a' does not fit the replay buffer"):
        buffer.insert(wrong)
    assert buffer.size == 0


@pytest.mark.parametrize("frames", [None, 1, 3])
def test_rejects_rollout_without_the_frames_before_it(frames: int | None):
    buffer, rollout = make_buffer(frame_stack=3), played()
    columns = rollout.substeps[FLAT_SUBSTEP]
    previous = frames and {path: leaf[:frames].swapaxes(0, 1) for path, leaf in columns.observation.items()}
    wrong = dataclasses.replace(columns, previous_observation=previous or None)
    with pytest.raises(InvalidRolloutError, match=r"0/observation/a before the first step is .* instead of .*2, 2, 2"):
        buffer.insert(dataclasses.replace(rollout, substeps={FLAT_SUBSTEP: wrong}))
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
