import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.distributions import action_distribution
from rollcast.actor.policies.networks import build_network
from rollcast.actor.policies.q_values import EpsilonGreedy
from rollcast.actor.policies.squashed_gaussian import finite_bounds
from rollcast.services.errors import ConfigurationError, InvalidSpaceError
from rollcast.services.policies.policies import BUILT_IN_NETWORKS, PolicySpec
from tests.unit.actor.acting_policies import VECTOR, batch_of, tensors_of
from tests.unit.actor.sample_environments import IMAGE_SPACES, OBSERVATION_SPACES

OWN = "tests.unit.actor.policies.own_networks"


@pytest.mark.parametrize(("name", "kind"), [*itertools.product(IMAGE_SPACES, BUILT_IN_NETWORKS)])
def test_every_space_of_images_has_every_network(name, kind):
    network = build_network(IMAGE_SPACES[name], 3, PolicySpec(network=kind, hidden_sizes=(8,)))
    outputs = network(tensors_of(batch_of(IMAGE_SPACES[name])))
    assert outputs.shape == (6, 3)
    assert outputs.dtype == torch.float32
    outputs.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.slow
def test_mlp_layers_and_initial_weights():
    network = build_network(VECTOR, 2, PolicySpec(hidden_sizes=(16, 8)))
    assert [tuple(layer.weight.shape) for layer in network.layers] == [(16, 4), (8, 16), (2, 8)]
    for layer, gain in zip(network.layers, [math.sqrt(2), math.sqrt(2), 0.01], strict=True):
        w = layer.weight.detach()
        gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), atol=1e-5, rtol=1e-4)
        assert not layer.bias.detach().any()
    critic = build_network(VECTOR, 1, PolicySpec(), output_gain=1.0)
    assert critic.layers[-1].weight.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_network_applies_its_activation():
    observation = {"": torch.randn(5, 4)}
    for activation, function in (("tanh", torch.tanh), ("relu", torch.relu)):
        network = build_network(VECTOR, 2, PolicySpec(hidden_sizes=(8,), activation=activation))
        expected = network.layers[1](function(network.layers[0](observation[""])))
        torch.testing.assert_close(network(observation), expected)


def test_nature_cnn_has_the_layers_of_the_paper():
    network = build_network(spaces.Box(0, 255, (84, 84, 4), np.uint8), 6, PolicySpec())
    n_torso = sum(parameter.numel() for parameter in network.images[0].parameters())
    convolutions = (8 * 8 * 4 + 1) * 32 + (4 * 4 * 32 + 1) * 64 + (3 * 3 * 64 + 1) * 64
    assert n_torso == convolutions + (7 * 7 * 64 + 1) * 512
    assert [tuple(layer.weight.shape) for layer in network.layers] == [(6, 512)]


def test_channel_orders_see_the_same_image():
    last = spaces.Box(0, 255, (40, 44, 3), np.uint8)
    first = spaces.Box(0, 255, (3, 40, 44), np.uint8)
    one, two = (build_network(space, 2, PolicySpec()) for space in (last, first))
    two.load_state_dict(one.state_dict())
    image = torch.randint(0, 256, (3, 40, 44, 3), dtype=torch.uint8)
    torch.testing.assert_close(one({"": image}), two({"": image.permute(0, 3, 1, 2)}), rtol=1e-4, atol=1e-6)


def test_own_network_is_built_and_unchanged_by_its_trial_run():
    network = build_network(VECTOR, 3, PolicySpec(network=f"{OWN}:Own"))
    assert network.training
    assert not network.norm.running_mean.any()  # the trial run left nothing behind
    assert network({"": torch.randn(5, 4)}).shape == (5, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_module", r"returned a function; expected a torch\.nn\.Module"),
        ("WrongShape", r"gave \(2, 1\) for 2 observations; expected a Tensor of shape \(2, 3\)"),
        ("WrongPath", r"raised KeyError.*with the paths \[''\]"),
        ("NoTensor", "gave list"),
        (
            "broken",
            r"broken' raised ValueError: no such layer \(.*own_networks\.py, line \d+, in broken\); expected",
        ),
        ("missing", "no attribute 'missing'"),
    ],
)
def test_rejects_own_networks_that_do_not_fit(name, message):
    with pytest.raises(ConfigurationError, match=message):
        build_network(VECTOR, 3, PolicySpec(network=f"{OWN}:{name}"))


@pytest.mark.parametrize(
    "refused",
    [
        action_distribution,
        finite_bounds,
        lambda space: EpsilonGreedy(space, dueling=False),
        lambda space: build_network(space, 3, PolicySpec(network=f"{OWN}:broken")),
    ],
)
def test_messages_show_large_spaces_on_a_line(refused: Callable[[spaces.Space[Any]], object]):
    grid = spaces.Box(np.zeros((9, 9), np.int64), np.arange(81).reshape(9, 9), dtype=np.int64)
    with pytest.raises((ConfigurationError, InvalidSpaceError)) as error:
        refused(grid)
    assert "\n" not in str(error.value)


def test_own_network_cannot_be_recurrent():
    with pytest.raises(
        ConfigurationError, match=r"recurrence 'gru' with the network '.*'; expected a built-in network"
    ):
        build_network(VECTOR, 2, PolicySpec(network=f"{OWN}:Own", recurrence="gru"))


@pytest.mark.parametrize("name", IMAGE_SPACES)
def test_images_are_remembered(name):
    network = build_network(IMAGE_SPACES[name], 3, PolicySpec(hidden_sizes=(8,), recurrence="gru", recurrent_size=4))
    outputs, state = network(tensors_of(batch_of(IMAGE_SPACES[name])), torch.zeros(6, 4))
    assert outputs.shape == (6, 3)
    assert state.shape == (6, 4)
    assert state.abs().max() > 0


@pytest.mark.parametrize("network", ["nature_cnn", "impala_shallow", "impala_resnet"])
def test_networks_for_images_refuse_observations_without(network):
    for space in OBSERVATION_SPACES.values():
        with pytest.raises(ConfigurationError, match=rf"network '{network}' for observations of .*; expected an image"):
            build_network(space, 2, PolicySpec(network=network))


def test_unknown_network_is_refused_with_the_names_that_there_are():
    with pytest.raises(ConfigurationError, match="'resnet' does not exist; expected one of auto, mlp, nature_cnn, imp"):
        build_network(VECTOR, 2, PolicySpec(network="resnet"))
