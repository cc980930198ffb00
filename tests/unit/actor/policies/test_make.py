import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.errors import ConfigurationError, InvalidInputError, NotReadyError, ProtocolMismatchError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.unit.actor.policies.test_features import batch_of
from tests.unit.actor.sample_environments import ACTION_SPACES, IMAGE_SPACES, OBSERVATION_SPACES

OWN = "tests.unit.actor.policies.own_networks:Own"
VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)


def spaces_of(observation=VECTOR, action=None):
    return {"0": SubstepSpaces(observation=observation, action=spaces.Discrete(3) if action is None else action)}


def state_of(substeps, spec, seed=0):
    """Weights far enough from their first values to tell mistakes apart."""
    torch.manual_seed(seed)
    policy = TorchPolicy(substeps, spec)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy.state_arrays()


def loaded(substeps, spec=None, *, seed=0, **arguments):
    spec = spec or PolicySpec(hidden_sizes=(16, 8))
    policy = make_policy(substeps, spec, seed=seed, **arguments)
    policy.load(1, state_of(substeps, spec))
    return policy


def test_uses_numpy_for_vectors_and_torch_for_the_rest():
    assert isinstance(make_policy(spaces_of(), PolicySpec(), seed=0), NumpyMlpPolicy)
    assert isinstance(make_policy(spaces_of(OBSERVATION_SPACES["nested"]), PolicySpec(), seed=0), NumpyMlpPolicy)
    assert isinstance(make_policy(spaces_of(IMAGE_SPACES["mixed"]), PolicySpec(), seed=0), TorchActingPolicy)
    own = make_policy(spaces_of(), PolicySpec(network=OWN), seed=0, allowed_network=OWN)
    assert isinstance(own, TorchActingPolicy)


@pytest.mark.parametrize("allowed", ["auto", "tests.unit.actor.policies.own_networks:Other"])
def test_rejects_network_other_than_the_allowed_one(allowed):
    with pytest.raises(ProtocolMismatchError, match=f"network is '{OWN}'; expected '{allowed}'"):
        make_policy(spaces_of(), PolicySpec(network=OWN), seed=0, allowed_network=allowed)


@pytest.mark.parametrize(("action", "activation"), list(zip(ACTION_SPACES, ["tanh", "relu"] * 6, strict=False)))
def test_numpy_and_torch_agree_on_actions(action, activation):
    agree(spaces_of(VECTOR, ACTION_SPACES[action]), PolicySpec(hidden_sizes=(16, 8), activation=activation))


@pytest.mark.parametrize(
    ("observation", "hidden_sizes"), list(zip(OBSERVATION_SPACES, [(), (64, 64)] * 6, strict=False))
)
def test_numpy_and_torch_agree_on_observations(observation, hidden_sizes):
    agree(spaces_of(OBSERVATION_SPACES[observation]), PolicySpec(hidden_sizes=hidden_sizes))


@pytest.mark.parametrize(
    ("head", "action"),
    [("squashed_gaussian", "box"), ("q_values", "discrete start"), ("dueling_q_values", "discrete start")],
)
def test_numpy_and_torch_agree_on_heads(head, action):
    agree(spaces_of(VECTOR, ACTION_SPACES[action]), PolicySpec(hidden_sizes=(16, 8), head=head))


def agree(substeps, spec):
    state = state_of(substeps, spec)
    batch = batch_of(substeps["0"].observation, 7)
    results = []
    for kind in (NumpyMlpPolicy, TorchActingPolicy):
        policy = kind(substeps, spec, seed=3)
        policy.load(1, state)
        _, parameters = policy.act(batch, deterministic=True)
        results.append(parameters.copy())
        action, parameters = policy.act(batch)
        assert action.shape == (7, *substeps["0"].action.shape)
        assert action.dtype == substeps["0"].action.dtype
        assert policy.log_prob(parameters, action).shape == (7,)
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("substeps", [spaces_of(), spaces_of(IMAGE_SPACES["channel last"], ACTION_SPACES["box"])])
def test_same_seed_draws_the_same_actions(substeps):
    batch = batch_of(substeps["0"].observation, 50)
    policies = [loaded(substeps, seed=seed) for seed in (1, 1, 2)]
    one, two, other = (policy.act(batch)[0] for policy in policies)
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()
    policies[2].seed(1)
    np.testing.assert_array_equal(policies[2].act(batch)[0], one)


def test_deterministic_actions_are_modes():
    policy = loaded(spaces_of())
    action, parameters = policy.act(batch_of(VECTOR, 9), deterministic=True)
    np.testing.assert_array_equal(action, parameters.argmax(axis=1))


def test_accepts_read_only_observations():
    for substeps in (spaces_of(), spaces_of(IMAGE_SPACES["channel first"])):
        batch = batch_of(substeps["0"].observation, 2)
        for array in batch.values():
            array.setflags(write=False)
        loaded(substeps).act(batch)


def test_acts_only_after_loading_and_reports_its_version():
    substeps, spec = spaces_of(), PolicySpec()
    policy = make_policy(substeps, spec, seed=0)
    batch = batch_of(VECTOR, 4)
    assert policy.version == 0
    with pytest.raises(NotReadyError, match="no weights yet"):
        policy.act(batch)
    one, two = (state_of(substeps, spec, seed) for seed in (1, 2))
    policy.load(5, one)
    assert policy.version == 5
    first = policy.act(batch)[1].copy()
    policy.load(6, two)
    assert (policy.act(batch)[1] != first).all()
    for array in one.values():
        array.setflags(write=False)  # as it comes over the wire
    policy.load(7, one)
    np.testing.assert_array_equal(policy.act(batch)[1], first)


def test_the_policy_keeps_copies():
    substeps, spec = spaces_of(), PolicySpec(hidden_sizes=())
    policy = make_policy(substeps, spec, seed=0)
    state = state_of(substeps, spec)
    policy.load(1, state)
    batch = batch_of(VECTOR, 4)
    before = policy.act(batch)[1].copy()
    for array in state.values():
        np.add(array, 1.0, out=array)
    np.testing.assert_array_equal(policy.act(batch)[1], before)


def test_numpy_policy_rejects_images():
    with pytest.raises(ConfigurationError, match=r"has images at \[''\].*make_policy"):
        NumpyMlpPolicy(spaces_of(IMAGE_SPACES["channel last"]), PolicySpec(), seed=0)


def test_own_network_acts():
    spec = PolicySpec(network=OWN)
    action, parameters = loaded(spaces_of(), spec, allowed_network=OWN).act(batch_of(VECTOR, 4))
    assert action.shape == (4,)
    assert parameters.shape == (4, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_policy_agrees_with_cpu_policy():
    substeps, spec = spaces_of(IMAGE_SPACES["mixed"]), PolicySpec()
    state = state_of(substeps, spec)
    batch = batch_of(IMAGE_SPACES["mixed"], 4)
    policies = [TorchActingPolicy(substeps, spec, seed=0, device=device) for device in ("cpu", "cuda")]
    for policy in policies:
        policy.load(1, state)
    on_cpu, on_gpu = (policy.act(batch)[1] for policy in policies)
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("kind", "hidden_sizes", "action", "head"),
    [
        ("lstm", (), "discrete", "default"),
        ("gru", (16, 8), "discrete", "default"),
        ("lstm", (16, 8), "box", "default"),
        ("gru", (), "box", "default"),
        ("lstm", (), "discrete", "q_values"),
        ("gru", (16, 8), "discrete", "dueling_q_values"),
    ],
)
def test_numpy_and_torch_agree_on_what_they_remember(kind, hidden_sizes, action, head):
    substeps = spaces_of(action=ACTION_SPACES[action])
    spec = PolicySpec(hidden_sizes=hidden_sizes, recurrence=kind, recurrent_size=6, head=head)
    state = state_of(substeps, spec)
    policies = [kind(substeps, spec, seed=3) for kind in (NumpyMlpPolicy, TorchActingPolicy)]
    memories = [policy.initial_state(5) for policy in policies]
    for policy in policies:
        policy.load(1, state)
    assert type(make_policy(substeps, spec, seed=0)) is NumpyMlpPolicy
    for step in range(4):
        batch = {"": np.random.default_rng(step).normal(size=(5, 4)).astype(np.float32)}
        one, other = (
            policy.act(batch, deterministic=True, state=memory)[1].copy()
            for policy, memory in zip(policies, memories, strict=True)
        )
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(*memories, atol=1e-5, rtol=1e-5)
    assert np.abs(memories[0]).max() > 0.01
    _, fresh = policies[0].act(batch, deterministic=True, state=policies[0].initial_state(5))
    assert not np.allclose(fresh, one), "what was seen before matters"


def test_state_must_fit_the_policy():
    spec = PolicySpec(hidden_sizes=(8,), recurrence="lstm", recurrent_size=6)
    policy, plain, batch = loaded(spaces_of(), spec), loaded(spaces_of()), batch_of(VECTOR, 3)
    assert plain.initial_state(3) is None
    for wrong in (None, np.zeros((3, 6), np.float32), np.zeros((2, 12), np.float32)):
        with pytest.raises(InvalidInputError, match=r"recurrent state has shape .*; expected \(3, 12\)"):
            policy.act(batch, state=wrong)
    with pytest.raises(InvalidInputError, match=r"has shape \(3, 12\); expected None"):
        plain.act(batch, state=np.zeros((3, 12), np.float32))
