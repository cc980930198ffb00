"""Stacks of frames, beside gymnasium's wrapper, and the policies that see them."""

import copy

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from rollcast.actor.policies.features import image_layout, image_size
from rollcast.actor.policies.frame_stacks import FrameStacks, stacked_space, stacks_of
from rollcast.actor.policies.image_networks import NatureCnn
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.errors import InvalidInputError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces, flatten_observation, space_leaves
from tests.rollouts import random_leaf

MIXED = spaces.Dict(
    [
        ("vector", spaces.Box(-1, 1, (3,), np.float32)),
        ("token", spaces.Discrete(5, start=2)),
        ("action_mask", spaces.MultiBinary(4)),
        ("pair", spaces.Tuple([spaces.MultiBinary(4), spaces.MultiDiscrete([[2, 3], [4, 5]])])),
        ("far", spaces.Box(-100, 100, (2, 2), np.float64)),
    ]
)
K = 3


class Showing(gymnasium.Env):
    """Shows random observations of a space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = copy.deepcopy(space)  # with a generator of its own

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (36, 40), np.uint8),
        spaces.Box(np.array([0.0, -1.0], np.float32), np.array([2.0, np.inf], np.float32)),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 3], start=[1, 0]),
        spaces.Discrete(3, start=-1),
        spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Tuple([spaces.Box(0, 1)])}),
    ],
)
def test_stacks_and_their_space_are_gymnasiums(space: spaces.Space):
    env, wrapped = Showing(space), FrameStackObservation(Showing(space), K)
    stacked, stacks = stacked_space(space, K), FrameStacks(K, 1)
    assert list(space_leaves(stacked)) == list(space_leaves(space))
    for episode in range(2):
        stacks.begin(0)
        for step in range(5):
            frame = env.step(0)[0] if step else env.reset(seed=episode)[0]
            expected = wrapped.step(0)[0] if step else wrapped.reset(seed=episode)[0]
            pushed = stacks.push({path: leaf[None] for path, leaf in flatten_observation(space, frame).items()})
            for path, leaf in flatten_observation(stacked, expected).items():
                np.testing.assert_array_equal(pushed[path][0], leaf)
                assert space_leaves(stacked)[path].contains(pushed[path][0])


def test_stacks_of_some_trajectories_are_those_of_all():
    rng = np.random.default_rng(0)
    one, other = FrameStacks(K, 4), FrameStacks(K, 4)
    before = None
    for step in range(6):
        frames = {path: random_leaf(leaf, (4,), rng) for path, leaf in space_leaves(MIXED).items()}
        if step == 3:
            for stacks in (one, other):
                stacks.begin([0, 2])
        stacked = {path: leaf.copy() for path, leaf in one.push(frames).items()}
        order = rng.permutation(4)
        for rows in (order[:1], order[1:]):
            some = other.push_some(rows, {path: leaf[rows] for path, leaf in frames.items()})
            for path, leaf in some.items():
                np.testing.assert_array_equal(leaf, stacked[path][rows])
        assert stacked["action_mask"].shape == (4, 4)
        if before is None:
            begun = stacks_of(frames, None, K)
            np.testing.assert_array_equal(begun["vector"], stacked["vector"])
        previous = one.previous()
        assert previous["action_mask"].shape == (4, K - 1, 4), "of every leaf, as rollouts have it"
        for path, leaf in stacks_of(frames, previous, K).items():
            np.testing.assert_array_equal(leaf, stacked[path])
        before = stacked


@pytest.mark.parametrize("action", [spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)])
def test_numpy_and_torch_agree_on_stacks_normalised_by_the_moments_of_frames(action: spaces.Space):
    observation = MIXED if isinstance(action, spaces.Discrete) else spaces.Box(-1, 1, (3,), np.float32)
    known = {"0": SubstepSpaces(observation=observation, action=action)}
    spec = PolicySpec(hidden_sizes=(16,), frame_stack=K, normalize_observations=True)
    learning = TorchPolicy(known, spec)
    rng = np.random.default_rng(0)
    frames = [{p: random_leaf(leaf, (5,), rng) for p, leaf in space_leaves(observation).items()} for _ in range(4)]
    seen = {path: torch.from_numpy(np.stack([frame[path] for frame in frames])) for path in frames[0]}
    learning.observe(seen, torch.ones(4, 5, dtype=torch.bool), 20)
    n_numbers = 3 + (4 if observation is MIXED else 0)
    assert learning.state_dict()["normalization.0.mean"].shape == (n_numbers,), "of a frame, not of a stack"
    policies = [kind(known, spec, seed=3) for kind in (NumpyMlpPolicy, TorchActingPolicy)]
    assert type(make_policy(known, spec, seed=0)) is NumpyMlpPolicy
    stacks = [policy.frame_stacks(5) for policy in policies]
    for policy in policies:
        policy.load(1, learning.state_arrays())
    for frame in frames:
        one, other = (
            policy.act(own.push(frame), deterministic=True)[1].copy()
            for policy, own in zip(policies, stacks, strict=True)
        )
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)
    # frames are normalised, then stacked
    stacked = stacks_of(frames[1], {path: leaf[:, None].repeat(K - 1, 1) for path, leaf in frames[0].items()}, K)
    normalized = learning.normalized({path: torch.from_numpy(leaf) for path, leaf in stacked.items()})
    for path, leaf in learning.normalized({path: torch.from_numpy(leaf) for path, leaf in frames[1].items()}).items():
        assert torch.equal(normalized[path] if path == "action_mask" else normalized[path][:, -1], leaf)


def test_single_frames_are_refused_by_a_policy_that_sees_several():
    known = {"0": SubstepSpaces(observation=spaces.Box(-1, 1, (3,), np.float32), action=spaces.Discrete(2))}
    policy = make_policy(known, PolicySpec(frame_stack=K), seed=0)
    policy.load(1, TorchPolicy(known, PolicySpec(frame_stack=K)).state_arrays())
    for shape in ((2, 3), (2, 2, 3), (2, 3, 4)):
        with pytest.raises(InvalidInputError, match=r"at '' has shape .*; expected \[3, 3\], the last 3 frames; pass"):
            policy.act({"": np.zeros(shape, np.float32)})
    assert make_policy(known, PolicySpec(), seed=0).frame_stacks(2) is None


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((3, 36, 40, 2), "channel_last"), ((3, 2, 36, 40), "channel_first"), ((3, 5, 5, 2), None), ((40, 40), None)],
)
def test_stacks_of_images_are_images_of_more_channels(shape: tuple[int, ...], layout):
    assert image_layout(spaces.Box(0, 255, shape, np.uint8)) == layout
    if layout is None:
        return
    cnn = NatureCnn(image_size(shape, layout), layout)
    stack = torch.randint(0, 256, (4, *shape), dtype=torch.uint8)
    frames = [frame if layout == "channel_first" else frame.permute(0, 3, 1, 2) for frame in stack.unbind(1)]
    joined = torch.cat(frames, dim=1)
    of_joined = NatureCnn(image_size(tuple(joined.shape[1:]), "channel_first"), "channel_first")
    of_joined.load_state_dict(cnn.state_dict())
    torch.testing.assert_close(cnn(stack), of_joined(joined))
