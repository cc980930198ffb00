import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from rollcast.learner.algorithms.critics import TwinCritic, ValueCritic
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces


def test_value_critic_returns_one_value_per_observation():
    observation = Dict({"where": Box(-1.0, 1.0, (2,)), "what": Discrete(3)})
    spaces = {"a": SubstepSpaces(observation=observation, action=Discrete(2))}
    critic = ValueCritic(spaces, PolicySpec(), substep_key="a")
    values = critic({"what": torch.tensor([0, 1, 2, 0]), "where": torch.randn(4, 2)})
    assert values.shape == (4,)
    assert values.dtype == torch.float32
    values.sum().backward()
    assert all(parameter.grad is not None for parameter in critic.parameters())


OBSERVATIONS = {
    "vector": (Box(-1.0, 1.0, (2,)), {"": torch.randn(4, 2)}),
    "dict": (
        Dict({"action": Box(-1.0, 1.0, (2,)), "what": Discrete(3)}),
        {"action": torch.randn(4, 2), "what": torch.tensor([0, 1, 2, 0])},
    ),
    "image": (Box(0, 255, (36, 36, 1), "uint8"), {"": torch.zeros(4, 36, 36, 1, dtype=torch.uint8)}),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_twin_critics_value_continuous_actions(name):
    space, observation = OBSERVATIONS[name]
    spaces = {"a": SubstepSpaces(observation=space, action=Box(-9.0, 9.0, (3, 2)))}
    critics = TwinCritic(spaces, PolicySpec(hidden_sizes=(8,)), substep_key="a")
    action = torch.randn(4, 6, requires_grad=True)
    first, second = critics(observation, action)
    assert first.shape == second.shape == (4,)
    assert not torch.allclose(first, second)
    gradients = torch.autograd.grad((first + second).sum(), [action, *critics.parameters()])
    assert gradients[0].abs().sum() > 0.0


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_twin_critics_value_every_discrete_action(name):
    space, observation = OBSERVATIONS[name]
    spaces = {"a": SubstepSpaces(observation=space, action=Discrete(5))}
    first, second = TwinCritic(spaces, PolicySpec(hidden_sizes=(8,)), substep_key="a")(observation)
    assert first.shape == second.shape == (4, 5)
