import dataclasses

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.acting.agreed_work import check_agreed_work
from rollcast.services.errors import LimitExceededError
from rollcast.services.joining.join import JoinAgreement
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces

SPACES = {"0": SubstepSpaces(observation=spaces.Box(-1, 1, (4,), np.float32), action=spaces.Discrete(2))}
AGREEMENT = JoinAgreement(
    actor_id="a",
    slot=0,
    incarnation=1,
    acknowledged_sequence=0,
    n_rollout_steps=32,
    env_seed=2**64 - 1,
    agent_seed=2**64 - 1,
    policy=PolicySpec(),
    max_message_bytes=4 << 20,
    n_envs=64,
)


def test_takes_everyday_work():
    check_agreed_work(SPACES, AGREEMENT, max_rollout_bytes=1 << 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_rollout_steps": 2**32 - 1}, "4294967295 steps of 64 environments .* --max-rollout-bytes here"),
        ({"n_envs": 65536}, "32 steps of 65536 environments"),
        ({"policy": PolicySpec(hidden_sizes=(8, 10_000))}, "hidden layer of 10000 for 64 environments takes 2560000"),
    ],
)
def test_refuses_work_that_takes_more_than_a_rollout_may(changes: dict[str, object], message: str):
    with pytest.raises(LimitExceededError, match=message):
        check_agreed_work(SPACES, dataclasses.replace(AGREEMENT, **changes), max_rollout_bytes=1 << 20)
