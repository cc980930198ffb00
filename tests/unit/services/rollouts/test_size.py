import numpy as np
import pytest
from gymnasium import spaces

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import LimitExceededError
from rollcast.services.rollouts.size import check_rollout_size, rollout_bytes
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.rollouts import NESTED, random_rollout

SPACES = {"0": SubstepSpaces(observation=spaces.Box(-1, 1, (4,), np.float32), action=spaces.Discrete(2))}


@pytest.mark.parametrize("key", NESTED)
def test_counts_the_bytes_of_a_rollout_without_final_observations(key: str):
    rollout = random_rollout(NESTED, 6, 3, key=key, n_final=0)
    columns = rollout.substeps[key]
    arrays = [*columns.observation.values(), *columns.last_observation.values(), columns.action, columns.log_prob]
    arrays += [rollout.reward, rollout.terminated, rollout.truncated, np.ones_like(rollout.terminated)]
    assert rollout_bytes(RolloutShape({key: NESTED[key]}, 6, 3)) == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize(
    ("remembered", "n_floats"), [({"state_size": 5}, 5), ({"frame_stack": 5}, 4 * 4)], ids=["a state", "frames before"]
)
def test_counts_what_a_policy_remembers(remembered: dict[str, int], n_floats: int):
    more = rollout_bytes(RolloutShape(SPACES, 6, 3, **remembered)) - rollout_bytes(RolloutShape(SPACES, 6, 3))
    assert more == 3 * n_floats * np.dtype(np.float32).itemsize


def test_the_largest_substep_counts():
    assert rollout_bytes(RolloutShape(NESTED, 6, 3)) == max(
        rollout_bytes(RolloutShape({key: NESTED[key]}, 6, 3)) for key in NESTED
    )


def test_refuses_rollouts_above_the_limit_without_allocating_them():
    n_bytes = rollout_bytes(RolloutShape(SPACES, 2**32 - 1, 64))
    check_rollout_size(RolloutShape(SPACES, 2**32 - 1, 64), max_rollout_bytes=n_bytes, advice="ask for less")
    with pytest.raises(
        LimitExceededError,
        match=f"4294967295 steps of 64 environments has {n_bytes} bytes; expected at most {n_bytes - 1}; ask for less",
    ) as refused:
        check_rollout_size(RolloutShape(SPACES, 2**32 - 1, 64), max_rollout_bytes=n_bytes - 1, advice="ask for less")
    assert refused.value.limit == "max_rollout_bytes"
