import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

from rollcast.actor.policies.squashed_gaussian import SquashedGaussian
from rollcast.actor.policies.torch_squashed_gaussian import TorchSquashedGaussian
from rollcast.services.errors import InvalidSpaceError

SPACE = spaces.Box(np.array([[-2.0, 0.0, 3.0]]), np.array([[2.0, 10.0, 4.0]]), dtype=np.float64)
N = 400


def parameters_of(n: int = N, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)


def reference(parameters: np.ndarray) -> TransformedDistribution:
    """The same by torch.distributions, in float64."""
    mean, log_std = torch.from_numpy(parameters).double().chunk(2, dim=-1)
    low, high = (torch.from_numpy(bound.ravel()) for bound in (SPACE.low, SPACE.high))
    squash = [TanhTransform(cache_size=1), AffineTransform((low + high) / 2, (high - low) / 2)]
    return TransformedDistribution(Normal(mean, log_std.clamp(-20.0, 2.0).exp()), squash)


def test_log_density_equals_that_of_torch_distributions():
    parameters = parameters_of()
    distribution = SquashedGaussian(SPACE)
    assert distribution.n_outputs == distribution.n_parameters == 6
    action = distribution.sample(parameters, np.random.default_rng(1))
    expected = reference(parameters).log_prob(torch.from_numpy(action.reshape(N, 3))).sum(dim=-1)
    ours = distribution.log_prob(parameters, action)
    assert ours.dtype == np.float32
    # Away from the bounds, where a pre-image is cut.
    inside = np.abs((action.reshape(N, 3) - [0.0, 5.0, 3.5]) / [2.0, 5.0, 0.5]).max(axis=1) < 1.0 - 2e-6
    assert inside.mean() > 0.8
    np.testing.assert_allclose(ours[inside], expected[inside], rtol=1e-4, atol=1e-4)
    folded = distribution.log_prob(parameters.reshape(20, 20, 6), action.reshape(20, 20, 1, 3))
    np.testing.assert_array_equal(folded.ravel(), ours)


def test_actions_are_in_the_space_even_far_out():
    distribution = SquashedGaussian(SPACE)
    for scale in (1.0, 1e3):
        parameters = parameters_of() * np.float32(scale)
        for action in (distribution.sample(parameters, np.random.default_rng(0)), distribution.mode(parameters)):
            assert action.dtype == SPACE.dtype
            assert all(SPACE.contains(one) for one in action)
            assert np.isfinite(distribution.log_prob(parameters, action)).all()


def test_mode_is_the_squashed_mean():
    action = SquashedGaussian(SPACE).mode(np.array([[0.0, 1.0, -30.0, 5.0, 5.0, 5.0]], np.float32))
    np.testing.assert_allclose(action, [[[0.0, 5.0 + 5.0 * np.tanh(1.0), 3.0]]], rtol=1e-6)


def test_torch_twin_samples_with_the_same_densities():
    parameters, noise = torch.from_numpy(parameters_of()), torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
    twin = TorchSquashedGaussian(SPACE)
    sample = twin.sample(parameters, noise)
    action = sample.action.numpy() * [2.0, 5.0, 0.5] + [0.0, 5.0, 3.5]
    torch.testing.assert_close(twin.normalise(torch.from_numpy(action).view(N, 1, 3)), sample.action)
    free = sample.action.abs().amax(dim=1) < 0.999  # where float32 still has a pre-image
    expected = reference(parameters.numpy()).log_prob(torch.from_numpy(action)).sum(dim=-1).float()
    torch.testing.assert_close((sample.log_prob - twin.log_half_width)[free], expected[free], rtol=1e-2, atol=1e-3)
    assert twin.log_half_width == pytest.approx(np.log(2.0 * 5.0 * 0.5), rel=1e-6)


def test_single_numbers_are_normalised():
    twin = TorchSquashedGaussian(spaces.Box(-2.0, 2.0, (), np.float32))
    torch.testing.assert_close(twin.normalise(torch.tensor([-2.0, 0.0, 1.0])), torch.tensor([[-1.0], [0.0], [0.5]]))


def test_gradient_equals_autograd():
    noise = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
    parameters = torch.from_numpy(parameters_of())
    parameters[0, 3:] = torch.tensor([-30.0, 3.0, 0.0])  # beyond the bounds of the log standard deviation, twice
    leaf = parameters.clone().requires_grad_()
    mean, log_std = leaf.chunk(2, dim=-1)
    log_std = log_std.clamp(-20.0, 2.0)
    distribution = Independent(Normal(mean, log_std.exp()), 1)
    u = mean + log_std.exp() * noise
    action = u.tanh()
    log_prob = distribution.log_prob(u) - TanhTransform().log_abs_det_jacobian(u, action).sum(dim=-1)
    slope = torch.tensor([1.0, -2.0, 0.5])
    (0.3 * log_prob + (action * slope).sum(dim=-1)).sum().backward()

    twin = TorchSquashedGaussian(SPACE)
    sample = twin.sample(parameters, noise)
    # Not the first: its reference loses the noise beside the mean.
    torch.testing.assert_close(sample.log_prob[1:], log_prob.detach()[1:], rtol=1e-4, atol=1e-4)
    gradient = twin.parameters_gradient(sample, slope.expand(N, 3), torch.tensor(0.3))
    torch.testing.assert_close(gradient, leaf.grad, rtol=1e-4, atol=1e-4)
    assert gradient[0, 3] == gradient[0, 4] == 0.0


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(2),
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Box(np.array([0.0, 1.0]), np.array([1.0, 1.0]), dtype=np.float64),
    ],
)
@pytest.mark.parametrize("make", [SquashedGaussian, TorchSquashedGaussian])
def test_rejects_spaces_without_finite_bounds(space, make):
    with pytest.raises(InvalidSpaceError, match="bounds are finite, low below high; give its Box bounds"):
        make(space)
