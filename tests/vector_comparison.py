"""Playing two vector environments side by side and comparing all they say."""

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv


def assert_same(left: Any, right: Any) -> None:
    """Equal in structure, shape and every bit, but for the dtype of rewards."""
    if isinstance(right, dict):
        assert left.keys() == right.keys()
        for key in right:
            assert_same(left[key], right[key])
    elif isinstance(right, tuple | list) or (isinstance(right, np.ndarray) and right.dtype == object):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(right, np.ndarray | np.generic):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype
    else:
        assert left == right


def assert_same_play(left: VectorEnv, right: VectorEnv, n_steps: int, *, seed: Any = 7) -> int:
    """Plays both with the same seeds and actions; returns how many episodes ended."""
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(left, name) == getattr(right, name)
    assert left.metadata == right.metadata
    assert_same(left.reset(seed=seed, options={"level": 3}), right.reset(seed=seed, options={"level": 3}))
    left.action_space.seed(0)
    n_ended = 0
    for _ in range(n_steps):
        action = left.action_space.sample()
        ours, theirs = left.step(action), right.step(action)
        assert_same(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1].astype(np.float32))
        assert ours[1].dtype == np.float32
        for one, other in zip(ours[2:], theirs[2:], strict=True):
            assert_same(one, other)
        ended = ours[2] | ours[3]
        n_ended += int(ended.sum())
        if left.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            assert_same(left.reset(options={"reset_mask": ended}), right.reset(options={"reset_mask": ended}))
    return n_ended
