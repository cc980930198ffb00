"""The networks side by side give what autograd gives for each of them, and only where they are MLPs."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from rollcast.actor.policies.network_arithmetic import NetworkArithmetic, networks_compute
from rollcast.learner.algorithms.actor_critic_networks import ActorCriticNetworks
from rollcast.learner.algorithms.descent import Descent, adam
from rollcast.learner.algorithms.minibatches import Steps
from rollcast.learner.algorithms.paired_mlps import Forward
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.ranks.reduction import ALONE
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces, space_leaves
from tests.actor_critics import IMAGES, SPEC

N = 33
VECTOR = Box(-np.inf, np.inf, (3,), np.float32)
WIDE = Box(-np.inf, np.inf, (40,), np.float32)
MASKED = Dict({"action_mask": Box(0, 1, (4,), np.int8), "seen": VECTOR, "gear": Discrete(3)})
FORCE = Box(-2.0, 2.0, (2,), np.float32)


class Networks:
    """The networks of an actor-critic, their descent, and N steps to evaluate."""

    def __init__(self, observation: Any, action: Any, spec: PolicySpec = SPEC, **settings: Any) -> None:
        torch.manual_seed(0)
        spaces = {FLAT_SUBSTEP: SubstepSpaces(observation=observation, action=action)}
        of = PpoSettings(**settings)
        self.both = ActorCriticNetworks(spaces, spec, of, substep_key=FLAT_SUBSTEP, device=torch.device("cpu"))
        self.descent = Descent(self.both.by_name, adam(1e-3), max_grad_norm=1e9)
        # far from their beginning, where the last layer is nearly 0
        with torch.no_grad():
            self.descent.parameters.vector.mul_(1.0 + torch.rand_like(self.descent.parameters.vector))
        observation.seed(0)
        action.seed(1)
        drawn = [observation.sample() for _ in range(N)]
        actions = [action.sample() for _ in range(N)]
        if observation is MASKED:
            for row, mask in enumerate(drawn):
                mask["action_mask"][row % 4] = 1
            actions = [int(action.start) + row % 4 for row in range(N)]
        leaves = space_leaves(observation)
        rows = {path: np.stack([_leaf(one, path) for one in drawn]) for path in leaves}
        self.steps = Steps(
            observation={path: torch.from_numpy(leaf) for path, leaf in rows.items()},
            action=torch.from_numpy(np.stack(actions)),
            **dict.fromkeys(("log_prob", "value", "advantage", "target"), torch.zeros(N)),
            valid=torch.ones(N),
            sequences=None,
        )

    def forward(self) -> Forward:
        return self.both.evaluate(self.steps)

    def gradient(self, forward: Forward) -> torch.Tensor:
        """Returns the gradient of some loss of all three outputs."""
        generator = torch.Generator().manual_seed(2)
        given = [torch.randn(N, generator=generator) for _ in range(3)]
        outputs = [forward.log_prob, forward.entropy, forward.values]
        self.descent.backward(
            outputs, [], output_gradients=given, write_gradient=forward.write_gradient, count=N, reduction=ALONE
        )
        return self.descent.parameters.gradient.clone()


def _leaf(observation: Any, path: str) -> np.ndarray:
    for name in filter(None, path.split("/")):
        observation = observation[name]
    return np.asarray(observation)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden_sizes", [(16,), (24, 16), (16, 24, 8)])
@pytest.mark.parametrize(
    ("observation", "action"),
    [(VECTOR, Discrete(3, start=5)), (WIDE, Discrete(2)), (MASKED, Discrete(4, start=-1)), (VECTOR, FORCE)],
    ids=["actions from 5", "wide", "masked", "box"],
)
def test_outputs_and_gradients_are_those_of_autograd(observation, action, hidden_sizes, activation: str):
    networks = Networks(observation, action, PolicySpec(hidden_sizes=hidden_sizes, activation=activation))
    expected = networks.forward()
    expected_gradient = networks.gradient(expected)
    networks.both.pair(networks.descent.parameters)
    forward = networks.forward()
    assert forward.write_gradient is not None
    for name in ("log_prob", "entropy", "values"):
        torch.testing.assert_close(getattr(forward, name), getattr(expected, name).detach(), rtol=1e-5, atol=1e-5)
    networks.descent.parameters.gradient.zero_()
    torch.testing.assert_close(networks.gradient(forward), expected_gradient, rtol=1e-4, atol=1e-5)
    assert expected_gradient.count_nonzero() > 0.5 * len(networks.descent.parameters.packed(expected_gradient))


@pytest.mark.parametrize("log_std", [-30.0, -20.0, 0.3, 2.0, 5.0])
def test_a_deviation_beyond_its_bounds_has_the_gradient_of_autograd(log_std: float):
    networks = Networks(VECTOR, FORCE)
    with torch.no_grad():
        networks.both.policy.log_std[FLAT_SUBSTEP].copy_(torch.tensor([log_std, 0.0]))
    expected = networks.gradient(networks.forward())
    networks.both.pair(networks.descent.parameters)
    torch.testing.assert_close(networks.gradient(networks.forward()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("observation", "action", "spec", "settings"),
    [
        (IMAGES[FLAT_SUBSTEP].observation, Discrete(2), SPEC, {}),
        (IMAGES[FLAT_SUBSTEP].observation, Discrete(2), SPEC, {"share_torso": True}),
        (VECTOR, MultiDiscrete([2, 3]), SPEC, {}),
        (VECTOR, Discrete(2), PolicySpec(hidden_sizes=()), {}),
        (VECTOR, Discrete(2), PolicySpec(network="tests.matrix.networks:make"), {}),
    ],
    ids=["images", "one torso", "several actions", "no hidden layer", "own network"],
)
def test_all_other_networks_have_their_graphs(observation, action, spec: PolicySpec, settings: dict[str, Any]):
    networks = Networks(observation, action, spec, **settings)
    networks.both.pair(networks.descent.parameters)
    forward = networks.forward()
    assert forward.write_gradient is None
    assert networks.gradient(forward).any()


def test_hidden_layers_of_another_format_have_their_graphs():
    networks = Networks(VECTOR, Discrete(2))
    networks.both.pair(networks.descent.parameters)
    with networks_compute(NetworkArithmetic(hidden=torch.bfloat16)):
        assert networks.forward().write_gradient is None
    assert networks.forward().write_gradient is not None
