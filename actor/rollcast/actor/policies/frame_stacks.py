"""Stacks of frames: the last K observations of a trajectory, as one input of a policy.

A stack is `[K, *shape]` of every leaf, the oldest frame first, as in gymnasium's FrameStackObservation. Of the action
masks, a stack has only the newest. At the start of an episode, a stack holds the first frame K times
(`padding_type="reset"`). Padding with zeros would need special treatment: normalisation would change the zeros, and a
learner would need to know which frames are padding.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.services.spaces.spaces import Observation


def stacked_space(observation_space: Space[Any], frame_stack: int) -> Space[Any]:
    """Returns the space of a network's inputs: stacks of frames of an observation space.

    Args:
        observation_space: Box, Discrete, MultiBinary, MultiDiscrete, or Dict and Tuple of these.
        frame_stack: K; 1: the space itself.
    """
    if frame_stack == 1:
        return observation_space
    if isinstance(observation_space, Dict):
        members = observation_space.spaces.items()
        # The mask is a leaf at the top, whose path is its key. Pairs, because a Dict sorts the keys of a dict.
        return Dict([(key, s if key == ACTION_MASK else _stacked(s, frame_stack)) for key, s in members])
    return _stacked(observation_space, frame_stack)


def _stacked(space: Space[Any], n: int) -> Space[Any]:
    if isinstance(space, Dict):
        return Dict([(key, _stacked(member, n)) for key, member in space.spaces.items()])
    if isinstance(space, Tuple):
        return Tuple([_stacked(member, n) for member in space.spaces])
    if isinstance(space, Discrete):
        return MultiDiscrete([int(space.n)] * n, dtype=_integer(space), start=[int(space.start)] * n)
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(_times(space.nvec, n), dtype=_integer(space), start=_times(space.start, n))
    if isinstance(space, MultiBinary):
        return MultiBinary((n, *space.shape))
    assert isinstance(space, Box)
    return Box(_times(space.low, n), _times(space.high, n), dtype=space.dtype.type)


def stacks_of(observation: Observation, previous: Observation | None, frame_stack: int) -> dict[str, NDArray[Any]]:
    """Appends frames to the previous frames.

    Args:
        observation: `[N, ...]` for every leaf.
        previous: `[N, K - 1, ...]` for every leaf, the oldest first; None: all frames begin an episode.
        frame_stack: K, at least 2.

    Returns:
        `[N, K, ...]` for every leaf; the action mask unchanged.
    """
    stacks: dict[str, NDArray[Any]] = {}
    for path, leaf in observation.items():
        if path == ACTION_MASK:
            stacks[path] = leaf
        elif previous is None:
            stacks[path] = np.repeat(leaf[:, None], frame_stack, axis=1)
        else:
            stacks[path] = np.concatenate([previous[path], leaf[:, None]], axis=1)
    return stacks


class FrameStacks:
    """The stacks of N trajectories of one substep. Initially, all trajectories begin an episode.

        stacks = policy.frame_stacks(len(observation))
        action, _ = policy.act(stacks.push(observation))

    Not thread-safe.
    """

    def __init__(self, frame_stack: int, n: int) -> None:
        """Begins the episodes.

        Args:
            frame_stack: K, at least 2.
            n: N.
        """
        self._frame_stack = frame_stack
        self._begins = np.ones(n, np.bool_)
        self._stacks: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._begins)

    def begin(self, rows: NDArray[np.bool_] | NDArray[np.int64] | list[int] | int) -> None:
        """Begins the episodes of some trajectories with their next frame; `rows` is any index into `[N]`."""
        self._begins[rows] = True

    def push(self, observation: Observation) -> Mapping[str, NDArray[Any]]:
        """Adds the next frame of every trajectory to its stack.

        Args:
            observation: `[N, ...]` for every leaf.

        Returns:
            The stacks, `[N, K, ...]` for every leaf, which the next call changes; the action mask unchanged.
        """
        pushed: dict[str, NDArray[Any]] = {}
        some_begin = self._begins.any()
        for path, leaf in observation.items():
            stack = self._stacks.get(path)
            if stack is None:
                stack = np.empty((len(leaf), self._frame_stack, *leaf.shape[1:]), leaf.dtype)
                self._stacks[path] = stack
            else:
                stack[:, :-1] = stack[:, 1:]
            stack[:, -1] = leaf
            if some_begin:
                stack[self._begins] = leaf[self._begins, None]
            pushed[path] = leaf if path == ACTION_MASK else stack
        if some_begin:
            self._begins[:] = False
        return pushed

    def push_some(self, rows: NDArray[np.int64], observation: Observation) -> dict[str, NDArray[Any]]:
        """Adds the next frame of some trajectories to their stacks.

        Args:
            rows: int64 `[n]`, the trajectories, each at most once.
            observation: `[n, ...]` for every leaf.

        Returns:
            The stacks of these trajectories, `[n, K, ...]` for every leaf, as copies; the action mask unchanged.
        """
        begins = self._begins[rows]
        pushed: dict[str, NDArray[Any]] = {}
        for path, leaf in observation.items():
            if path not in self._stacks:
                self._stacks[path] = np.zeros((len(self), self._frame_stack, *leaf.shape[1:]), leaf.dtype)
            stack = np.concatenate([self._stacks[path][rows, 1:], leaf[:, None]], axis=1)
            stack[begins] = leaf[begins, None]
            self._stacks[path][rows] = stack
            pushed[path] = leaf if path == ACTION_MASK else stack
        self._begins[rows] = False
        return pushed

    def previous(self) -> dict[str, NDArray[Any]]:
        """Returns the K - 1 frames before the last pushed frames, `[N, K - 1, ...]` for every leaf, as copies."""
        return {path: stack[:, :-1].copy() for path, stack in self._stacks.items()}

    def previous_of(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Returns the `previous` frames of some trajectories, `[n, K - 1, ...]` for every leaf, as copies."""
        return {path: stack[rows, :-1] for path, stack in self._stacks.items()}


def _times(array: NDArray[Any], n: int) -> NDArray[Any]:
    return np.repeat(np.asarray(array)[None], n, axis=0)


def _integer(space: Discrete | MultiDiscrete) -> type[np.integer[Any]]:
    dtype: type[np.integer[Any]] = np.dtype(space.dtype).type
    return dtype
