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
from rollcast.services.errors import InvalidInputError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import flatten_observation, space_leaves
from tests.rollouts import random_leaf
from tests.unit.actor.acting_policies import loaded, spaces_of

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


def test_single_frames_are_refused_by_a_policy_that_sees_several():
    known = spaces_of(spaces.Box(-1, 1, (3,), np.float32))
    policy = loaded(known, PolicySpec(frame_stack=K))
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
