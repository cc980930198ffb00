import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.services.errors import ProtocolMismatchError
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.unit.actor.sample_environments import ACTION_SPACES

N = 400
OBSERVATION = {"": np.zeros((N, 1), np.float32)}


def policy_of(action, seed=0):
    observation = spaces.Box(-1.0, 1.0, (1,), np.float32)
    return RandomPolicy({"0": SubstepSpaces(observation=observation, action=action)}, seed=seed)


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_actions_are_in_the_space_and_seeded(name):
    space = ACTION_SPACES[name]
    one, two, other = (policy_of(space, seed).act(OBSERVATION)[0] for seed in (1, 1, 2))
    assert one.shape == (N, *space.shape)
    assert one.dtype == space.dtype
    assert all(
        space.contains(
            action if space.shape else action[()] if not isinstance(space, spaces.Box) else np.asarray(action)
        )
        for action in one
    )
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


@pytest.mark.parametrize("name", ["discrete start", "multi discrete", "multi binary"])
def test_discrete_actions_are_uniform(name):
    space = ACTION_SPACES[name]
    policy = policy_of(space)
    action, parameters = policy.act(OBSERVATION)
    sizes = [space.n] if isinstance(space, spaces.Discrete) else getattr(space, "nvec", np.full(3, 2))
    np.testing.assert_allclose(policy.log_prob(parameters, action), -np.log(np.prod(sizes)), rtol=1e-5)


def test_log_prob_of_box_equals_its_density():
    low, high = np.array([-1.0, 0.0, -np.inf, -np.inf]), np.array([3.0, np.inf, 2.0, np.inf])
    policy = policy_of(spaces.Box(low, high, dtype=np.float64))
    action, parameters = policy.act(OBSERVATION)
    normal = -0.5 * action[:, 3] ** 2 - 0.5 * np.log(2 * np.pi)
    expected = -np.log(4.0) - action[:, 1] + (action[:, 2] - 2.0) + normal
    np.testing.assert_allclose(policy.log_prob(parameters, action), expected, rtol=1e-5)
    folded = policy.log_prob(parameters.reshape(4, 100, -1), action.reshape(4, 100, 4))
    np.testing.assert_allclose(folded.ravel(), expected, rtol=1e-5)
    assert -1.0 <= action[:, 0].min() < -0.9
    assert 2.9 < action[:, 0].max() <= 3.0


def test_random_policy_has_versions_but_no_weights():
    policy = policy_of(spaces.Discrete(2))
    assert policy.version == 0
    policy.load(3, {})
    assert policy.version == 3
    with pytest.raises(ProtocolMismatchError, match=r"have \['w'\] in addition; expected \[\]"):
        policy.load(4, {"w": np.zeros(1)})
