import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.policies import network_size
from rollcast.actor.policies.features import feature_layout
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.network_size import check_network_size
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.errors import LimitExceededError
from rollcast.services.policies.policies import BUILT_IN_NETWORKS, PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.unit.actor.sample_environments import IMAGE_SPACES, OBSERVATION_SPACES

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)


SPACES = {**OBSERVATION_SPACES, **IMAGE_SPACES, "atari": spaces.Box(0, 255, (84, 84, 1), np.uint8)}


@pytest.mark.parametrize(
    ("name", "network"),
    [
        *((name, "auto") for name in SPACES),
        *(("atari", network) for network in BUILT_IN_NETWORKS),
    ],
)
def test_computed_size_equals_that_of_the_built_network(name: str, network: str, monkeypatch: pytest.MonkeyPatch):
    observation = SPACES[name]
    spec = PolicySpec(network=network, hidden_sizes=(16, 8))
    policy = TorchPolicy({"0": SubstepSpaces(observation=observation, action=spaces.Discrete(3))}, spec)
    n_bytes = sum(array.nbytes for array in policy.state_arrays().values())
    layout = feature_layout(observation, network)
    monkeypatch.setattr(network_size, "MAX_POLICY_BYTES", n_bytes)
    check_network_size(layout, observation, 3, spec)
    monkeypatch.setattr(network_size, "MAX_POLICY_BYTES", n_bytes - 1)
    with pytest.raises(LimitExceededError, match=f"{n_bytes} bytes of weights; expected at most {n_bytes - 1}"):
        check_network_size(layout, observation, 3, spec)


@pytest.mark.parametrize(
    ("observation", "action", "hidden_sizes"),
    [
        (spaces.Discrete(10**9), spaces.Discrete(2), (64, 64)),
        (VECTOR, spaces.Discrete(10**9), (64, 64)),
        (spaces.MultiDiscrete([10**8] * 10), spaces.Discrete(2), (64,)),
        (VECTOR, spaces.Discrete(2), (10**9,)),
        (VECTOR, spaces.Discrete(2), (50_000, 50_000)),
        (spaces.Box(0, 255, (1500, 1900, 1), np.uint8), spaces.Discrete(2), ()),
    ],
)
def test_rejects_too_large_network_before_allocation(observation, action, hidden_sizes):
    substeps = {"0": SubstepSpaces(observation=observation, action=action)}
    spec = PolicySpec(hidden_sizes=hidden_sizes)
    for make in (lambda: make_policy(substeps, spec, seed=0), lambda: TorchPolicy(substeps, spec)):
        with pytest.raises(
            LimitExceededError, match=r"bytes of weights; expected at most 1073741824.*reduce the spaces"
        ):
            make()
