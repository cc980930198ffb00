import math

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.policies.distributions import action_distribution
from rollcast.services.errors import InvalidSpaceError
from tests.unit.actor.sample_environments import ACTION_SPACES

N = 50


@pytest.fixture(params=ACTION_SPACES)
def space(request):
    return ACTION_SPACES[request.param]


def parameters_of(distribution, shape=(N,), seed=0):
    return np.random.default_rng(seed).normal(size=(*shape, distribution.n_parameters)).astype(np.float32)


def test_actions_are_in_the_space_and_seeded(space):
    distribution = action_distribution(space)
    parameters = parameters_of(distribution)
    sampled, same, other = (distribution.sample(parameters, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(sampled, same)
    assert (sampled != other).any()
    assert distribution.log_prob(parameters, sampled).dtype == np.float32
    for action in (sampled, distribution.mode(parameters)):
        assert action.shape == (N, *space.shape)
        assert action.dtype == space.dtype
        if not isinstance(space, spaces.Box):  # Gaussian samples are clipped where the environment is stepped
            assert all(space.contains(a if space.shape else a[()]) for a in action)


@pytest.mark.parametrize("name", [name for name in ACTION_SPACES if not name.startswith("box")])
def test_probabilities_of_all_actions_sum_to_one(name):
    space = ACTION_SPACES[name]
    distribution = action_distribution(space)
    if isinstance(space, spaces.Discrete):
        every = np.arange(space.n) + space.start
    else:
        sizes = space.nvec.ravel() if isinstance(space, spaces.MultiDiscrete) else [2] * math.prod(space.shape)
        start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
        every = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).reshape(-1, *space.shape) + start
    parameters = np.broadcast_to(parameters_of(distribution, ()), (len(every), distribution.n_parameters))
    log_prob = distribution.log_prob(parameters, every.astype(space.dtype))
    assert np.exp(log_prob).sum() == pytest.approx(1.0, abs=1e-5)
    assert every[log_prob.argmax()] == pytest.approx(distribution.mode(parameters[:1])[0])


@pytest.mark.parametrize("name", ["discrete start", "multi discrete", "multi binary matrix"])
def test_frequencies_match_probabilities(name):
    space = ACTION_SPACES[name]
    distribution = action_distribution(space)
    n = 40_000
    parameters = np.tile(parameters_of(distribution, ()), (n, 1))
    action = distribution.sample(parameters, np.random.default_rng(3))
    seen, counts = np.unique(action.reshape(n, -1), axis=0, return_counts=True)
    p = np.exp(distribution.log_prob(parameters[: len(seen)], seen.reshape(-1, *space.shape).astype(space.dtype)))
    # Five standard errors of a frequency, for a fixed seed: it passes or it does not.
    assert (np.abs(counts / n - p) < 5 * np.sqrt(p * (1 - p) / n)).all()


def test_gaussian_moments_and_unbounded_samples():
    distribution = action_distribution(spaces.Box(-0.1, 0.1, (1,), np.float32))
    parameters = np.tile(np.array([3.0, math.log(0.5)], np.float32), (20_000, 1))
    action = distribution.sample(parameters, np.random.default_rng(0))
    assert action.mean() == pytest.approx(3.0, abs=0.02)
    assert action.std() == pytest.approx(0.5, abs=0.02)


def test_log_std_is_clipped():
    distribution = action_distribution(spaces.Box(-1.0, 1.0, (1,), np.float32))
    action = np.zeros((1, 1), np.float32)
    for extreme, bound in ((-1e3, -20.0), (1e3, 2.0)):
        one, two = (distribution.log_prob(np.array([[0.0, s]], np.float32), action) for s in (extreme, bound))
        assert one == two
        assert np.isfinite(distribution.sample(np.array([[0.0, extreme]], np.float32), np.random.default_rng(0))).all()


def test_extreme_logits_stay_finite():
    for space in (spaces.Discrete(3), spaces.MultiDiscrete([3]), spaces.MultiBinary(3)):
        distribution = action_distribution(space)
        parameters = np.array([[1e4, -1e4, 0.0]], np.float32)
        action = distribution.sample(parameters, np.random.default_rng(0))
        np.testing.assert_array_equal(action.ravel()[:1], distribution.mode(parameters).ravel()[:1])
        assert np.isfinite(distribution.log_prob(parameters, action)).all()


def test_a_draw_of_exactly_zero_raises_no_warning():
    class Zero:
        def standard_exponential(self, shape, dtype):
            return np.zeros(shape, dtype)

    distribution = action_distribution(spaces.Discrete(2))
    assert distribution.sample(np.array([[0.0, 1.0]], np.float32), Zero()) == [1]


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 9, (2,), np.int64), spaces.Text(3), spaces.Tuple([spaces.Discrete(2)])]
)
def test_rejects_other_spaces(space):
    with pytest.raises(InvalidSpaceError, match="expected Discrete, MultiDiscrete, MultiBinary, or Box with a float"):
        action_distribution(space)
