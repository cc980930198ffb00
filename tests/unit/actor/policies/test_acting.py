"""Policies that act, numpy's and torch's, beside the policy that learns: the same numbers for whatever they see."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.features import feature_layout
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.observation_moments import normalized_leaves
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.torch_distributions import log_prob
from rollcast.services.policies.policies import BUILT_IN_NETWORKS, PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.unit.actor.acting_policies import SMALL, VECTOR, batch_of, noisy, spaces_of
from tests.unit.actor.sample_environments import ACTION_SPACES, IMAGE_SPACES, OBSERVATION_SPACES

ATARI, SMALL_IMAGE = (spaces.Box(0, 255, (size, size, 1), np.uint8) for size in (84, 10))
MULTI = spaces.MultiDiscrete([[2, 4], [1, 3]], start=[[1, 0], [5, -1]])
THREE = spaces.Discrete(3)
N_STEPS, N = 4, 5


def masked(n: int) -> spaces.Space:
    return spaces.Dict({"seen": VECTOR, "action_mask": spaces.MultiBinary(n)})


def remembers(kind: str, *hidden_sizes: int, **options: object) -> PolicySpec:
    return PolicySpec(hidden_sizes=hidden_sizes, recurrence=kind, recurrent_size=6, **options)


CASES = {
    **{
        f"action: {name}": (VECTOR, action, PolicySpec(hidden_sizes=(16, 8), activation=activation))
        for (name, action), activation in zip(ACTION_SPACES.items(), itertools.cycle(["tanh", "relu"]))
    },
    **{
        f"observation: {name}": (observation, THREE, PolicySpec(hidden_sizes=sizes))
        for (name, observation), sizes in zip(OBSERVATION_SPACES.items(), itertools.cycle([(), (64, 64)]))
    },
    **{
        f"normalised: {name}": (observation, THREE, PolicySpec(hidden_sizes=(16, 8), normalize_observations=True))
        for name, observation in (OBSERVATION_SPACES | IMAGE_SPACES).items()
        if normalized_leaves(observation)
    },
    "squashed": (VECTOR, ACTION_SPACES["box"], PolicySpec(head="squashed_gaussian")),
    "values": (VECTOR, ACTION_SPACES["discrete start"], PolicySpec(head="q_values")),
    "dueling values": (VECTOR, ACTION_SPACES["discrete start"], PolicySpec(head="dueling_q_values")),
    "lstm": (VECTOR, THREE, remembers("lstm")),
    "gru, layers": (VECTOR, THREE, remembers("gru", 16, 8)),
    "lstm, layers, box": (VECTOR, ACTION_SPACES["box"], remembers("lstm", 16, 8)),
    "gru, box": (VECTOR, ACTION_SPACES["box"], remembers("gru")),
    "lstm, values": (VECTOR, THREE, remembers("lstm", head="q_values")),
    "gru, layers, dueling values": (VECTOR, THREE, remembers("gru", 16, 8, head="dueling_q_values")),
    "lstm, normalised": (OBSERVATION_SPACES["dict"], THREE, remembers("lstm", 8, normalize_observations=True)),
    "masked": (masked(3), THREE, SMALL),
    "masked elements": (masked(10), MULTI, SMALL),
    "stacked, masked, normalised": (
        masked(3),
        THREE,
        PolicySpec(hidden_sizes=(16,), frame_stack=3, normalize_observations=True),
    ),
    "stacked, nested, normalised": (
        OBSERVATION_SPACES["dict"],
        ACTION_SPACES["box"],
        PolicySpec(hidden_sizes=(16,), frame_stack=3, normalize_observations=True),
    ),
    **{
        f"stacked images: {network}": (image, THREE, PolicySpec(network=network, hidden_sizes=(8,), frame_stack=2))
        # numpy's sums of 14,112 numbers would need bounds of their own
        for network, image in (dict.fromkeys(BUILT_IN_NETWORKS, ATARI) | {"mlp": SMALL_IMAGE}).items()
    },
}


@pytest.mark.parametrize(("observation", "action", "spec"), CASES.values(), ids=CASES)
def test_acting_policies_compute_what_the_learner_computes_for_every_version(observation, action, spec):
    substeps = spaces_of(observation, action)
    kinds, bounds = (NumpyMlpPolicy, TorchActingPolicy), {"rtol": 1e-5, "atol": 1e-5}
    if feature_layout(observation, spec.network).images:
        kinds = (TorchActingPolicy,)
    if kinds == (TorchActingPolicy,) or spec.normalize_observations:
        bounds = {"rtol": 1e-4, "atol": 1e-6}
    assert type(make_policy(substeps, spec, seed=0)) is kinds[0]
    policies = [kind(substeps, spec, seed=3) for kind in kinds]
    samples = batch_of(observation, N_STEPS * N)
    for version in (1, 2):
        learning = noisy(substeps, spec, seed=version)
        if spec.normalize_observations:
            some = {path: torch.tensor(leaf[: N * version]) for path, leaf in samples.items()}
            learning.observe(some, torch.ones(N * version, dtype=torch.bool), N * version)
        for policy in policies:
            check_that_it_acts_as(policy, learning, version, samples, bounds)


def check_that_it_acts_as(policy, learning, version, samples, bounds):
    spec, space = learning.spec, learning.spaces[FLAT_SUBSTEP].action
    state = learning.state_arrays()
    for array in state.values():
        array.setflags(write=False)  # as it comes over the wire
    policy.load(version, state)
    assert policy.version == version
    memory, stacks = policy.initial_state(N), policy.frame_stacks(N)
    remembered = None if memory is None else torch.tensor(memory)
    for step in range(N_STEPS):
        seen = {path: leaf[step * N : (step + 1) * N] for path, leaf in samples.items()}
        seen = seen if stacks is None else {path: leaf.copy() for path, leaf in stacks.push(seen).items()}
        tensors = {path: torch.tensor(leaf) for path, leaf in seen.items()}
        for leaf in seen.values():
            leaf.setflags(write=False)
        with torch.no_grad():
            if memory is None:
                expected = learning.parameters_of(tensors)
            else:
                expected, remembered = learning.step(tensors, remembered)
        likeliest, parameters = policy.act(seen, deterministic=True, state=memory)
        np.testing.assert_allclose(parameters, expected, **bounds)
        if memory is not None:
            np.testing.assert_allclose(memory, remembered, **bounds)
            assert np.abs(memory).max() > 0.01
        assert (likeliest.shape, likeliest.dtype) == ((N, *space.shape), space.dtype)
        if spec.head != "default":
            assert all(space.contains(one if space.shape else one[()]) for one in likeliest)
        else:
            log_probs = log_prob(space, torch.tensor(parameters), torch.tensor(likeliest))
            np.testing.assert_allclose(policy.log_prob(parameters, likeliest), log_probs, rtol=1e-4, atol=1e-5)
