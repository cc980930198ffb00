import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from rollcast.actor.policies.distributions import action_distribution
from rollcast.actor.policies.torch_distributions import entropy, log_prob, log_prob_and_entropy
from rollcast.services.errors import InvalidSpaceError
from tests.unit.actor.sample_environments import ACTION_SPACES

T, B = 4, 5


@pytest.fixture(params=ACTION_SPACES)
def sample(request):
    space = ACTION_SPACES[request.param]
    distribution = action_distribution(space)
    parameters = np.random.default_rng(0).normal(size=(T * B, distribution.n_parameters)).astype(np.float32)
    action = distribution.sample(parameters, np.random.default_rng(1))
    return space, parameters.reshape(T, B, -1), action.reshape(T, B, *space.shape)


def reference(space, parameters, action):
    """Log-probability and entropy by torch.distributions, element by element."""
    flat = action.reshape(T, B, -1)
    if isinstance(space, spaces.Discrete):
        elements = [(Categorical(logits=parameters), flat[..., 0] - int(space.start))]
    elif isinstance(space, spaces.MultiDiscrete):
        parts = torch.split(parameters, space.nvec.ravel().tolist(), dim=-1)
        elements = [
            (Categorical(logits=part), flat[..., i] - int(space.start.ravel()[i])) for i, part in enumerate(parts)
        ]
    elif isinstance(space, spaces.MultiBinary):
        elements = [(Independent(Bernoulli(logits=parameters), 1), flat.float())]
    else:
        mean, log_std = parameters.chunk(2, dim=-1)
        elements = [(Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1), flat.float())]
    return sum(d.log_prob(a) for d, a in elements), sum(d.entropy() for d, _ in elements)


def test_agrees_with_numpy_and_torch_distributions(sample):
    space, parameters, action = sample
    tensors = torch.from_numpy(parameters), torch.from_numpy(action)
    ours, our_entropy = log_prob(space, *tensors), entropy(space, tensors[0])
    assert ours.shape == our_entropy.shape == (T, B)
    assert ours.dtype == our_entropy.dtype == torch.float32
    np.testing.assert_allclose(
        ours.numpy(), action_distribution(space).log_prob(parameters, action), rtol=1e-5, atol=1e-5
    )
    expected, expected_entropy = reference(space, *tensors)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_entropy, expected_entropy, rtol=1e-5, atol=1e-5)
    both = log_prob_and_entropy(space, *tensors)
    torch.testing.assert_close(both, (ours, our_entropy))


def test_gradients_equal_those_of_torch_distributions(sample):
    space, parameters, action = sample
    gradients = []
    for compute in (log_prob_and_entropy, reference):
        leaf = torch.from_numpy(parameters.copy()).requires_grad_()
        log_p, h = compute(space, leaf, torch.from_numpy(action))
        (log_p.sum() + 0.3 * h.sum()).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [entropy, lambda s, p: log_prob(s, p, p)])
def test_rejects_other_spaces(function):
    with pytest.raises(InvalidSpaceError, match="the action space is Text"):
        function(spaces.Text(3), torch.zeros(1, 2))
