import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.policies.exploration import EPSILONS, UNIFORM, Exploration, epsilon_ladder, read_exploration
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.errors import ConfigurationError, ProtocolMismatchError
from rollcast.services.policies.policies import PolicySpec
from tests.unit.actor.acting_policies import noisy
from tests.unit.actor.acting_policies import spaces_of as flat_spaces

N = 4000
DISCRETE = spaces.Discrete(4, start=3)
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
HEADS = {
    "default": DISCRETE,
    "squashed_gaussian": BOX,
    "q_values": DISCRETE,
    "dueling_q_values": DISCRETE,
}
KINDS = [NumpyMlpPolicy, TorchActingPolicy]
OBSERVATION = {"": np.random.default_rng(0).uniform(-1.0, 1.0, (N, 4)).astype(np.float32)}


def spaces_of(head):
    return flat_spaces(action=HEADS[head])


def spec_of(head):
    return PolicySpec(hidden_sizes=(8,), head=head)


def torch_policy(head) -> TorchPolicy:
    return noisy(spaces_of(head), spec_of(head))


def test_ladder_has_the_rates_of_the_paper():
    ladder = epsilon_ladder(8)
    assert ladder.dtype == np.float32
    np.testing.assert_allclose(ladder[[0, 1, 7]], [0.4, 0.16, 0.4**8], rtol=1e-6)
    np.testing.assert_allclose(epsilon_ladder(1, epsilon=0.3), [0.3], rtol=1e-6)
    np.testing.assert_allclose(epsilon_ladder(3, epsilon=0.1, alpha=1.0), [0.1, 10**-1.5, 0.01], rtol=1e-5)
    assert not epsilon_ladder(4, epsilon=0.0).any()


@pytest.mark.parametrize("arguments", [{"n": 0}, {"n": 2, "epsilon": 1.1}, {"n": 2, "alpha": -1.0}])
def test_rejects_impossible_ladders(arguments):
    with pytest.raises(ConfigurationError, match="the ladder has n"):
        epsilon_ladder(**arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", HEADS)
def test_uniform_exploration_begins_and_ends(kind, head):
    source = torch_policy(head)
    policy = kind(spaces_of(head), spec_of(head), seed=0)
    source.set_uniform_exploration(True)
    policy.load(1, source.state_arrays())
    assert policy.exploration.uniform
    action, parameters = policy.act(OBSERVATION)
    expected = -2.0 * np.log(4.0) if HEADS[head] is BOX else -np.log(4.0)
    np.testing.assert_allclose(policy.log_prob(parameters, action), expected, rtol=1e-6)
    if HEADS[head] is BOX:
        counts = np.histogram(action[:, 0], bins=4, range=(-2.0, 2.0))[0]
    else:
        counts = np.bincount(action - 3, minlength=4)
    assert (np.abs(counts - N / 4) < 5 * np.sqrt(N * 3 / 16)).all()
    greedy = policy.act(OBSERVATION, deterministic=True)[0]
    source.set_uniform_exploration(False)
    policy.load(2, source.state_arrays())
    assert not policy.exploration.uniform
    np.testing.assert_array_equal(policy.act(OBSERVATION, deterministic=True)[0], greedy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slot", [0, 1, 2, 5])
def test_every_slot_has_its_own_rate(kind, slot):
    source = torch_policy("q_values")
    rates = epsilon_ladder(3, epsilon=0.5, alpha=3.0)
    source.set_epsilons(rates)
    policy = kind(spaces_of("q_values"), spec_of("q_values"), seed=1, slot=slot)
    policy.load(1, source.state_arrays())
    epsilon = float(rates[slot % 3])
    assert policy.exploration == Exploration(epsilon=epsilon)
    action, parameters = policy.act(OBSERVATION)
    greedy = policy.act(OBSERVATION, deterministic=True)[0]
    p = epsilon * 3 / 4
    assert abs((action != greedy).mean() - p) < 5 * np.sqrt(p * (1 - p) / N)
    np.testing.assert_allclose(
        policy.log_prob(parameters, action), np.log(np.where(action == greedy, 1 - p, epsilon / 4)), rtol=1e-5
    )


def test_rejects_rates_for_heads_without_action_values():
    with pytest.raises(ConfigurationError, match=r"only .* act epsilon-greedily"):
        torch_policy("squashed_gaussian").set_epsilons([0.1])
    with pytest.raises(ProtocolMismatchError, match=r"has \['exploration.epsilons'\]"):
        read_exploration({EPSILONS: np.zeros(1, np.float32)}, "default", slot=0)


@pytest.mark.parametrize("head", HEADS)
def test_torch_policy_has_and_loads_all_exploration_arrays_of_its_head(head):
    one, two = torch_policy(head), TorchPolicy(spaces_of(head), spec_of(head))
    one.set_uniform_exploration(True)
    if head == "q_values":
        one.set_epsilons([0.5, 0.25, 0.125])
    two.load_state_arrays(one.state_arrays())
    assert two.state_arrays().keys() == one.state_arrays().keys()
    names = {name for name in torch_policy(head).state_arrays() if name.startswith("exploration")}
    assert names == {"default": set(), "squashed_gaussian": {UNIFORM}}.get(head, {UNIFORM, EPSILONS})
    assert all(np.array_equal(array, two.state_arrays()[name]) for name, array in one.state_arrays().items())


def test_default_head_without_exploration_arrays_does_not_explore():
    plain, explorer = torch_policy("default"), torch_policy("default")
    explorer.set_uniform_exploration(True)
    explorer.load_state_arrays(plain.state_arrays())
    assert explorer.state_arrays()[UNIFORM] == 0
    policy = make_policy(spaces_of("default"), spec_of("default"), seed=0)
    explorer.set_uniform_exploration(True)
    policy.load(1, explorer.state_arrays())
    policy.load(2, plain.state_arrays())
    assert not policy.exploration.uniform
