import dataclasses

import numpy as np
import pytest

from rollcast.learner.replay.columns.layout import make_layout
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


@pytest.mark.parametrize(("log_prob", "expected"), [(False, 8 + 6 + 8), (True, 8 + 6 + 8 + 4)])
def test_step_bytes_are_the_sum_of_its_columns(log_prob: bool, expected: int):
    layout = make_layout(SPACES, n_rollout_steps=4, log_prob=log_prob)
    assert layout.step_bytes.columns == expected
    assert layout.step_bytes.bookkeeping == 5, "a float32 reward and a byte of flags"
    assert layout.step_bytes.times(3).total == 3 * (expected + 5)
