"""Clips the policy's actions to the bounds of the action space, for the environment."""

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from numpy.typing import NDArray


class ExecutedActions:
    """The rule for the actions that an environment executes.

        executed = ExecutedActions(action_space)
        env.step(executed(action))

    Actions of a Box are clipped to the bounds of the Box. All other actions are executed unchanged. A Gaussian policy
    may choose an action outside the bounds. Rollouts record the chosen action with its log-probability. All code that
    steps an environment, answers with actions, or learns from executed actions uses this rule.

    Stateless: any thread may call it.

    Attributes:
        bounds: The lowest and the highest action, each in the shape and dtype of the space; None: no clipping.
    """

    bounds: tuple[NDArray[Any], NDArray[Any]] | None

    def __init__(self, action_space: Space[Any]) -> None:
        """Reads the bounds of the space.

        Args:
            action_space: An action space of any kind.
        """
        self.bounds = None
        if isinstance(action_space, Box) and (action_space.bounded_below.any() or action_space.bounded_above.any()):
            self.bounds = action_space.low, action_space.high

    def __call__(self, action: NDArray[Any]) -> NDArray[Any]:
        """Returns the actions for the environment.

        Args:
            action: `[..., *shape]` in the dtype of the space; it is not changed.

        Returns:
            Actions of the same shape and dtype: a fresh array, or `action` itself if nothing is clipped.
        """
        if self.bounds is None:
            return action
        clipped: NDArray[Any] = np.clip(action, *self.bounds)
        return clipped
