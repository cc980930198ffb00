import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.environments.executed_actions import ExecutedActions
from tests.unit.actor.sample_environments import ACTION_SPACES

INTEGERS = spaces.Box(np.array([-3, 0], np.int32), np.array([3, 255], np.int32), dtype=np.int32)
HALF = spaces.Box(-0.1, 0.1, (2,), np.float16)


@pytest.mark.parametrize("space", [*ACTION_SPACES.values(), INTEGERS, HALF], ids=str)
def test_clips_actions_to_the_box_and_leaves_others_unchanged(space):
    space.seed(0)
    chosen = np.stack([np.asarray(space.sample()) for _ in range(64)])
    if isinstance(space, spaces.Box):
        chosen = chosen * space.dtype.type(9) + space.dtype.type(1)
    before = chosen.copy()
    executed = ExecutedActions(space)(chosen)
    assert (executed.dtype, executed.shape) == (chosen.dtype, chosen.shape)
    for given, row in zip(executed, chosen, strict=True):
        assert space.contains(np.asarray(given)) or not isinstance(space, spaces.Box)
        if space.contains(np.asarray(row)) or not isinstance(space, spaces.Box):
            np.testing.assert_array_equal(given, row)
    np.testing.assert_array_equal(chosen, before)


def test_clips_each_element_to_its_own_bounds():
    space = spaces.Box(np.array([-1.0, -np.inf, 0.0], np.float32), np.array([1.0, 2.0, np.inf], np.float32))
    executed = ExecutedActions(space)
    np.testing.assert_array_equal(
        executed(np.array([[-5.0, -5.0, -5.0], [5.0, 5.0, 5.0], [0.5, 1.5, 2.5]], np.float32)),
        np.array([[-1.0, -5.0, 0.0], [1.0, 2.0, 5.0], [0.5, 1.5, 2.5]], np.float32),
    )
    whole_rollout = executed(np.full((4, 2, 3), 9.0, np.float32))
    np.testing.assert_array_equal(whole_rollout, np.broadcast_to(np.float32([1.0, 2.0, 9.0]), (4, 2, 3)))


def test_bounds_are_none_if_nothing_is_clipped():
    assert ExecutedActions(ACTION_SPACES["box unbounded"]).bounds is None
    assert ExecutedActions(ACTION_SPACES["discrete"]).bounds is None
    low, high = ExecutedActions(ACTION_SPACES["box"]).bounds
    np.testing.assert_array_equal([low, high], np.float32([[-0.1, -0.1], [0.1, 0.1]]))
