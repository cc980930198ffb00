import numpy as np
import torch
from gymnasium import spaces

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.policies.policies import PolicySpec
from tests.unit.actor.acting_policies import spaces_of


def policy_of(action_space, **spec):
    return TorchPolicy(spaces_of(action=action_space), PolicySpec(**spec))


def test_box_has_a_log_std_that_learns():
    policy = policy_of(spaces.Box(-1.0, 1.0, (2,), np.float32))
    with torch.no_grad():
        policy.log_std["0"].copy_(torch.tensor([-1.0, 0.5]))
    parameters = policy.parameters_of({"": torch.randn(5, 4)})
    torch.testing.assert_close(parameters[:, 2:], torch.tensor([[-1.0, 0.5]]).expand(5, 2))
    parameters.sum().backward()
    torch.testing.assert_close(policy.log_std["0"].grad, torch.tensor([5.0, 5.0]))
    assert "log_std.0" in policy.state_dict()


def test_state_arrays_are_copies_and_can_be_loaded():
    one, two = (policy_of(spaces.Discrete(3)) for _ in range(2))
    state = one.state_arrays()
    observation = {"": torch.randn(5, 4)}
    before = one(observation)
    for array in state.values():
        array.setflags(write=False)
    two.load_state_arrays(state)
    torch.testing.assert_close(two(observation), before)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.add_(1.0)
    two.load_state_arrays(state)
    torch.testing.assert_close(two(observation), before)


def test_state_arrays_have_buffers():
    spec = {"network": "tests.unit.actor.policies.own_networks:Own"}
    one, two = (policy_of(spaces.Discrete(3), **spec) for _ in range(2))
    one({"": torch.randn(50, 4) + 3.0})
    two.load_state_arrays(one.state_arrays())
    torch.testing.assert_close(two.state_dict(), one.state_dict())
    assert two.state_dict()["networks.0.norm.num_batches_tracked"] == 1
