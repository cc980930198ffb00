"""Normalised observations in numpy and in torch: the same bits, and those of the formula."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.observation_moments import moments_layout, normalized_leaves, scale_of
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.policies.policies import PolicySpec
from tests.unit.actor.acting_policies import batch_of, spaces_of, tensors_of
from tests.unit.actor.sample_environments import OBSERVATION_SPACES

ODD = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-38, 1e38, -3.4028235e38, 3.4028235e38, 7.0000005, 1 / 3, 1e-8], np.float32
)


def policy_of(observation, **spec):
    return TorchPolicy(spaces_of(observation), PolicySpec(normalize_observations=True, **spec))


def state_with(policy, mean, variance, count=10):
    state = dict(policy.state_arrays())
    n = len(state["normalization.0.mean"])
    state["normalization.0.mean"] = np.resize(np.asarray(mean, np.float64), n)
    state["normalization.0.variance"] = np.resize(np.asarray(variance, np.float64), n)
    state["normalization.0.count"] = np.array(count, np.int64)
    return state


def numpy_normalized(policy, state, observation):
    """The features that the numpy policy's network sees: without hidden layers it can show each as an action."""

    def showing(n):
        actions = spaces.Box(-np.inf, np.inf, (n,), np.float32)
        substeps = spaces_of(policy.spaces["0"].observation, actions)
        return TorchPolicy(substeps, replace(policy.spec, hidden_sizes=()))

    n = showing(1).state_arrays()["networks.0.layers.0.weight"].shape[1]
    shown = showing(n)
    moments = {key: array for key, array in state.items() if key.startswith("normalization")}
    weights = {
        "networks.0.layers.0.weight": np.eye(n, dtype=np.float32),
        "networks.0.layers.0.bias": np.zeros(n, np.float32),
    }
    acting = NumpyMlpPolicy(shown.spaces, shown.spec, seed=0)
    acting.load(1, {**shown.state_arrays(), **moments, **weights})
    return acting.act(observation, deterministic=True)[0]


def torch_normalized(policy, state, observation):
    policy.load_state_arrays(state)
    return policy.normalized(tensors_of(observation))


def test_only_boxes_of_floats_are_normalised():
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (40, 40, 3), np.uint8),
            "bytes": spaces.Box(0, 255, (7,), np.uint8),
            "tile": spaces.Discrete(3),
            "deep": spaces.Dict(
                {"wide": spaces.Box(-1, 1, (2, 3), np.float64), "one": spaces.Box(0, 1, (), np.float32)}
            ),
            "action_mask": spaces.MultiBinary(3),
        }
    )
    leaves = normalized_leaves(space)
    assert leaves == {"deep/one": (), "deep/wide": (2, 3)} or leaves == {"deep/wide": (2, 3), "deep/one": ()}
    assert moments_layout("s", leaves)["normalization.s.mean"] == ((7,), np.dtype(np.float64))
    assert moments_layout("s", {}) == {}


def test_a_new_policy_leaves_observations_as_they_are():
    policy = policy_of(spaces.Box(-np.inf, np.inf, (4,), np.float32))
    x = np.random.default_rng(0).uniform(-10, 10, (50, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.normalized({"": torch.from_numpy(x)})[""].numpy(), x)
    np.testing.assert_array_equal(numpy_normalized(policy, policy.state_arrays(), {"": x}), x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("clip", [0.5, 10.0])
@pytest.mark.parametrize(
    "moments",
    [
        ((0.0, 1.0, -3.25, 1e30), (0.0, 1.0, 1e-12, 1e60)),
        ((0.1, 1 / 3, -7e-9, 3.4028235e38), (1e77, 2.0**-80, 0.3, 1e-300)),
    ],
)
def test_numpy_and_torch_give_the_bits_of_the_formula(dtype, clip, moments):
    policy = policy_of(spaces.Box(-np.inf, np.inf, (12,), dtype), observation_clip=clip)
    state = state_with(policy, *moments)
    random = np.random.default_rng(0).standard_normal((40, 12)) * 10.0 ** np.arange(-6, 6)
    with np.errstate(all="ignore"):
        x = np.concatenate([np.stack([np.roll(ODD, i) for i in range(12)]), random]).astype(dtype)
        x[~np.isfinite(x)] = 0.0  # refused before, by the checks of values
        scale = np.float32(np.maximum(1 / np.sqrt(state["normalization.0.variance"] + 1e-8), np.finfo(np.float32).tiny))
        # In float64 for leaves of float64, in float32 for all others.
        wide = np.float64 if dtype == np.float64 else np.float32
        y = (x.astype(wide) - state["normalization.0.mean"].astype(wide)).astype(np.float32) * scale
        expected = np.clip(y, np.float32(-clip), np.float32(clip))
    for found in (numpy_normalized(policy, state, {"": x}), torch_normalized(policy, state, {"": x})[""].numpy()):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_large_float64_numbers_keep_what_tells_them_apart(frame_stack):
    """As float32, all of these are one of two numbers."""
    policy = policy_of(spaces.Box(-np.inf, np.inf, (2,), np.float64), frame_stack=frame_stack)
    n = 500 * frame_stack
    z = np.random.default_rng(0).standard_normal((n, 2))
    x = 1e6 + 0.01 * z
    policy.observe({"": torch.from_numpy(x)}, torch.ones(n, dtype=torch.bool), n)
    state = policy.state_arrays()
    expected = ((z - z.mean(axis=0)) / z.std(axis=0)).reshape(500, -1)
    seen = {"": x.reshape(500, 2) if frame_stack == 1 else x.reshape(500, frame_stack, 2)}
    for found in (numpy_normalized(policy, state, seen), torch_normalized(policy, state, seen)[""].numpy()):
        np.testing.assert_allclose(found.reshape(500, -1), expected, rtol=1e-3, atol=1e-4)


def test_numbers_beyond_float32_are_clipped_and_never_nan():
    policy = policy_of(spaces.Box(-np.inf, np.inf, (2,), np.float64))
    x = np.array([[1e300, -1e300]])
    state = state_with(policy, 0.0, 1e77)
    np.testing.assert_array_equal(numpy_normalized(policy, state, {"": x}), [[10, -10]])
    np.testing.assert_array_equal(torch_normalized(policy, state, {"": x})[""].numpy(), [[10, -10]])


@pytest.mark.parametrize("name", [name for name, space in OBSERVATION_SPACES.items() if normalized_leaves(space)])
def test_every_float_leaf_is_normalised_alike_and_the_others_pass(name):
    space = OBSERVATION_SPACES[name]
    policy = policy_of(space, hidden_sizes=(16, 8))
    state = state_with(policy, [0.25, -0.5, 0.1], [0.3, 2.0, 1e-4, 7.0])
    batch = batch_of(space, 7)
    normalized = torch_normalized(policy, state, batch)
    assert list(normalized) == list(batch)
    for path, leaf in batch.items():
        assert normalized[path].shape == leaf.shape
        if path not in normalized_leaves(space):
            assert normalized[path].dtype == torch.from_numpy(leaf).dtype
            np.testing.assert_array_equal(normalized[path].numpy(), leaf)
    plain = TorchPolicy(policy.spaces, PolicySpec(hidden_sizes=(16, 8)))
    expected = numpy_normalized(plain, {}, {path: leaf.numpy() for path, leaf in normalized.items()})
    np.testing.assert_array_equal(numpy_normalized(policy, state, batch), expected)


def test_observations_stay_as_they_were():
    policy = policy_of(spaces.Box(-1, 1, (4,), np.float32))
    x = np.ones((3, 4), np.float32)
    numpy_normalized(policy, state_with(policy, 5.0, 2.0), {"": x})
    torch_normalized(policy, state_with(policy, 5.0, 2.0), {"": x})
    assert (x == 1).all()


def test_scale_of_a_number_that_never_changed():
    assert scale_of(np.array([0.0])).item() == 10_000.0
