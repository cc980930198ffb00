import torch
from gymnasium.spaces import Box, Dict, Discrete

from learner.critics import ValueCritic
from services.policies import PolicySpec
from services.spaces import SubstepSpaces


def test_a_value_for_every_observation():
    observation = Dict({"where": Box(-1.0, 1.0, (2,)), "what": Discrete(3)})
    spaces = {"a": SubstepSpaces(observation=observation, action=Discrete(2))}
    critic = ValueCritic(spaces, PolicySpec(), substep_key="a")
    values = critic({"what": torch.tensor([0, 1, 2, 0]), "where": torch.randn(4, 2)})
    assert values.shape == (4,)
    assert values.dtype == torch.float32
    values.sum().backward()
    assert all(parameter.grad is not None for parameter in critic.parameters())
