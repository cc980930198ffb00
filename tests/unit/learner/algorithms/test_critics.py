import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from rollcast.actor.policies.networks import AutoNetwork
from rollcast.learner.algorithms.critics import CriticEnsemble, RecurrentValueCritic, ValueCritic
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("recurrence", ["none", "gru"])
def test_values_do_not_depend_on_the_action_mask(recurrence, frame_stack):
    observation = Dict({"action_mask": MultiBinary(3), "seen": Box(-1.0, 1.0, (2,))})
    spaces = {"0": SubstepSpaces(observation=observation, action=Discrete(3))}
    spec = PolicySpec(recurrence=recurrence, recurrent_size=0 if recurrence == "none" else 5, frame_stack=frame_stack)
    critic = (ValueCritic if recurrence == "none" else RecurrentValueCritic)(spaces, spec, substep_key="0")
    state = [torch.randn(4, 5)] if spec.state_size else []
    seen = torch.randn(4, 2) if frame_stack == 1 else torch.randn(4, frame_stack, 2)
    all_allowed, one_allowed = torch.ones(4, 3, dtype=torch.int8), torch.tensor([[0, 1, 0]] * 4, dtype=torch.int8)
    values = critic({"action_mask": all_allowed, "seen": seen}, *state)
    assert torch.equal(values, critic({"action_mask": one_allowed, "seen": seen}, *state))
    assert len(values.unique()) == 4


OBSERVATIONS = {
    "vector": (Box(-1.0, 1.0, (2,)), {"": torch.randn(4, 2)}),
    "dict": (
        Dict({"action": Box(-1.0, 1.0, (2,)), "what": Discrete(3)}),
        {"action": torch.randn(4, 2), "what": torch.tensor([0, 1, 2, 0])},
    ),
    "image": (Box(0, 255, (36, 36, 1), "uint8"), {"": torch.zeros(4, 36, 36, 1, dtype=torch.uint8)}),
}


def ensemble(space, action, *, own: bool = False, activation: str = "relu", **options) -> CriticEnsemble:
    spec = PolicySpec(network=OWN if own else "auto", hidden_sizes=(8, 6), activation=activation)
    spaces = {"a": SubstepSpaces(observation=space, action=action)}
    return CriticEnsemble(spaces, spec, substep_key="a", **options)


OWN = "tests.unit.learner.algorithms.test_critics:make_own"


def make_own(observation_space, n_outputs):
    class Own(torch.nn.Linear):
        def forward(self, observation):
            return super().forward(observation[""])

    return Own(2, n_outputs)


def alone(critics: CriticEnsemble, index: int, observation, action=None, activate=torch.relu) -> torch.Tensor:
    """Computes one critic by itself, layer by layer."""
    network = critics.networks[index]
    if action is not None:
        x, layers = network.inputs(observation, action), network.network.layers
    elif isinstance(network, AutoNetwork):
        x, layers = network.features(observation), network.layers
    else:
        return network(observation)
    for i, layer in enumerate(layers[:-1]):
        x = layer(x)
        x = activate(x if critics.norms is None else critics.norms[index][i](x))
    x = layers[-1](x)
    return x if action is None else x.squeeze(-1)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(
    ("name", "activation"), [("vector", "relu"), ("dict", "tanh"), ("image", "relu"), ("own", "tanh")]
)
def test_critics_value_continuous_actions_each_by_itself(name, activation, layer_norm):
    space, observation = OBSERVATIONS["vector" if name == "own" else name]
    options = {"own": name == "own", "activation": activation, "n_critics": 3, "layer_norm": layer_norm}
    critics = ensemble(space, Box(-9.0, 9.0, (3, 2)), **options)
    action = torch.randn(4, 6, requires_grad=True)
    values = critics(observation, action)
    assert values.shape == (3, 4)
    activate = getattr(torch, activation)
    expected = torch.stack([alone(critics, index, observation, action, activate) for index in range(3)])
    torch.testing.assert_close(values, expected)
    assert not torch.allclose(values[0], values[1])
    sources = [action, *critics.parameters()]
    for gradient, wanted in zip(
        torch.autograd.grad(values.square().sum(), sources),
        torch.autograd.grad(expected.square().sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(critics(observation, action, members=[2, 0]), expected[[2, 0]])
    with critics.frozen():
        assert critics(observation, action).requires_grad
        assert not critics(observation, action.detach()).requires_grad


@pytest.mark.parametrize("name", [*OBSERVATIONS, "own"])
def test_critics_value_every_discrete_action_each_by_itself(name):
    space, observation = OBSERVATIONS["vector" if name == "own" else name]
    critics = ensemble(space, Discrete(5), own=name == "own", n_critics=3)
    values = critics(observation)
    assert values.shape == (3, 4, 5)
    torch.testing.assert_close(values, torch.stack([alone(critics, index, observation) for index in range(3)]))
    torch.testing.assert_close(critics(observation, members=[1]), values[[1]])


@pytest.mark.parametrize("name", ["image", "own"])
def test_layer_norm_without_a_hidden_layer_is_refused(name):
    space, _ = OBSERVATIONS["vector" if name == "own" else name]
    with pytest.raises(ConfigurationError, match=r"layer norm for critics without hidden layers.*or leave it out"):
        ensemble(space, Discrete(5), own=name == "own", layer_norm=True)


def test_twin_critics_have_the_names_of_older_checkpoints():
    names = [name for name, _ in ensemble(Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (1,))).named_parameters()]
    of_layers = [f"{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
    assert names == [f"networks.{i}.network.layers.{layer}" for i in range(2) for layer in of_layers]
