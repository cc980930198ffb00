import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.errors import InvalidTensorError, ProtocolMismatchError
from rollcast.services.policies.policies import PolicySpec
from tests.unit.actor.policies.test_features import batch_of
from tests.unit.actor.policies.test_make import VECTOR, spaces_of, state_of


@pytest.mark.parametrize("kind", [NumpyMlpPolicy, TorchActingPolicy])
def test_rejects_wrong_weights_and_keeps_the_old(kind):
    substeps, spec = spaces_of(), PolicySpec(hidden_sizes=(8,))
    policy = kind(substeps, spec, seed=0)
    good = state_of(substeps, spec)
    policy.load(1, good)
    name = "networks.0.layers.0.weight"
    bad = {
        "lack \\['networks.0.layers.0.weight'\\]": {key: good[key] for key in good if key != name},
        "have \\['critic'\\] in addition": {**good, "critic": good[name]},
        "is float32\\[9, 4\\]; expected float32\\[8, 4\\]": {**good, name: np.zeros((9, 4), np.float32)},
        "is float64\\[8, 4\\]; expected float32\\[8, 4\\]": {**good, name: good[name].astype(np.float64)},
    }
    batch = batch_of(VECTOR, 4)
    before = policy.act(batch)[1].copy()
    for message, state in bad.items():
        with pytest.raises(ProtocolMismatchError, match=message):
            policy.load(2, state)
    assert policy.version == 1
    np.testing.assert_array_equal(policy.act(batch)[1], before)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (NumpyMlpPolicy, "networks.0.layers.0.weight", np.nan),
        (NumpyMlpPolicy, "log_std.0", -np.inf),
        (TorchActingPolicy, "networks.0.layers.0.weight", np.inf),
        (TorchActingPolicy, "log_std.0", np.nan),
    ],
)
def test_rejects_policy_that_is_not_finite_and_keeps_the_last(kind, name: str, value: float):
    substeps, spec = spaces_of(action=spaces.Box(-1.0, 1.0, (2,), np.float32)), PolicySpec(hidden_sizes=(16, 8))
    policy = kind(substeps, spec, seed=0)
    state = dict(state_of(substeps, spec))
    policy.load(1, state)
    batch = batch_of(VECTOR, 3)
    before = policy.act(batch, deterministic=True)[1].copy()
    state[name] = state[name].copy()
    state[name].flat[1] = value
    with pytest.raises(InvalidTensorError, match=rf"weight '{name}' holds {value} at \[.*1\]; expected finite numbers"):
        policy.load(2, state)
    assert policy.version == 1
    np.testing.assert_array_equal(policy.act(batch, deterministic=True)[1], before)


def test_accepts_finite_weights_whose_sum_overflows():
    substeps, spec = spaces_of(), PolicySpec(hidden_sizes=(16, 8))
    policy = NumpyMlpPolicy(substeps, spec, seed=0)
    policy.load(1, {name: np.full_like(array, 3e38) for name, array in state_of(substeps, spec).items()})
    assert policy.version == 1


class Masked(torch.nn.Module):
    """A network of one's own with a mask that is infinite, as attention has it."""

    def __init__(self, observation_space, n_outputs):
        super().__init__()
        self.layer = torch.nn.Linear(4, n_outputs)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, observation):
        return self.layer(observation[""]) + torch.exp(self.mask).sum()


def test_buffer_of_own_network_may_be_infinite_but_not_nan():
    network = f"{__name__}:Masked"
    substeps, spec = spaces_of(), PolicySpec(network=network)
    policy = make_policy(substeps, spec, seed=0, allowed_network=network)
    state = dict(TorchPolicy(substeps, spec).state_arrays())
    policy.load(1, state)
    state["networks.0.mask"] = np.array([np.nan, 0.0], np.float32)
    with pytest.raises(InvalidTensorError, match=r"weight 'networks\.0\.mask' holds nan at \[0\]"):
        policy.load(2, state)
