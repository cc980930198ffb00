from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.make import make_policy, make_saved_policy
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.errors import (
    ConfigurationError,
    InvalidInputError,
    InvalidSpaceError,
    NotReadyError,
    ProtocolMismatchError,
    SpacesMismatchError,
)
from rollcast.services.policies.policies import PolicySpec, SavedPolicy
from tests.unit.actor.acting_policies import VECTOR, batch_of, loaded, spaces_of, state_of
from tests.unit.actor.sample_environments import ACTION_SPACES, IMAGE_SPACES, OBSERVATION_SPACES

OWN = "tests.unit.actor.policies.own_networks:Own"


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


_OF_POLICY = spaces_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))


def saved_policy(**changes: Any) -> SavedPolicy:
    spec = PolicySpec(hidden_sizes=(8,), head="q_values")
    given = {"spec": spec, "state": TorchPolicy(_OF_POLICY, spec).state_arrays(), "spaces": _OF_POLICY}
    return SavedPolicy(**{**given, "policy_version": 3, "env_steps": 99, "mean_return": None, **changes})


@pytest.mark.parametrize(
    ("played_in", "where"),
    [
        (spaces_of(spaces.Box(-1, 1, (4,)), spaces.Discrete(2)), "0/observation: the saved policy has Box"),
        (spaces_of(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))), "0/action: the saved policy has Discrete"),
        ({"red": _OF_POLICY["0"]}, "the saved policy has .*, the environment to play in has"),
    ],
)
def test_a_saved_policy_that_does_not_fit_names_the_space_that_differs(played_in, where: str):
    with pytest.raises(SpacesMismatchError, match=where):
        make_saved_policy(saved_policy(), played_in, seed=0)
    with pytest.raises((ProtocolMismatchError, InvalidSpaceError)):
        make_saved_policy(saved_policy(spaces=None), played_in, seed=0)


def test_a_saved_policy_plays_in_an_environment_with_other_bounds():
    make_saved_policy(saved_policy(), spaces_of(spaces.Box(-9, 9, (3,)), spaces.Discrete(2)), seed=0)


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


def test_acts_only_after_loading():
    policy = make_policy(spaces_of(), PolicySpec(), seed=0)
    assert policy.version == 0
    with pytest.raises(NotReadyError, match="no weights yet"):
        policy.act(batch_of(VECTOR, 4))


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


def test_state_must_fit_the_policy():
    spec = PolicySpec(hidden_sizes=(8,), recurrence="lstm", recurrent_size=6)
    policy, plain, batch = loaded(spaces_of(), spec), loaded(spaces_of()), batch_of(VECTOR, 3)
    assert plain.initial_state(3) is None
    for wrong in (None, np.zeros((3, 6), np.float32), np.zeros((2, 12), np.float32)):
        with pytest.raises(InvalidInputError, match=r"recurrent state has shape .*; expected \(3, 12\)"):
            policy.act(batch, state=wrong)
    with pytest.raises(InvalidInputError, match=r"has shape \(3, 12\); expected None"):
        plain.act(batch, state=np.zeros((3, 12), np.float32))
